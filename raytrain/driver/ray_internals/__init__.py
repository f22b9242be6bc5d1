"""Ray, started sooner: a node with fewer processes, and Ray Train's controller in this process.

Stock, a node of one's own starts an API server, an autoscaler and a log reader, and a training starts five actors
besides its workers (controller, autoscaling coordinator, placement-group cleaner, dataset manager, and one behind
`ray.train.report`). Each is a process that imports much of Ray. The workers get a runtime environment of their own,
which excludes the idle processes that a node keeps. raytrain needs none of that: the metrics file is its channel, its
number of workers is fixed, and a placement group ends with the job of the process that made it.

In each worker, DistributedDataParallel and the optimizers import the whole of torch.compile, half of a worker's
imports, to ask it two questions whose answers are known where nothing is compiled.

This folder alone has private names of Ray and torch: those of `versions.VERSION` and `compiler.TORCH_VERSION`. On
another version, or where a name is missing, everything is stock.
"""
