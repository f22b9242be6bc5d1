"""Ray Train with Ray Data, the preprocessed data set kept in the object store: `materialize`, as Ray's guide to faster
epochs has it.

https://docs.ray.io/en/latest/train/user-guides/data-loading-preprocessing.html#performance-tips
"""

from benchmarks.sides.ray_streaming import main

if __name__ == "__main__":
    main(materialise=True)
