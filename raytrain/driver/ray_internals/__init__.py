"""A faster start of Ray: a node with fewer processes, and Ray Train's controller in this process.

Unmodified, a local node starts an API server, an autoscaler and a log reader, and Ray Train starts five actors besides
its workers (controller, autoscaling coordinator, placement-group cleaner, dataset manager, and one behind
`ray.train.report`). Each is a process that imports much of Ray. The workers get a separate runtime environment, so they
cannot use the idle processes that a node keeps. raytrain needs none of that: the metrics file is its channel, the
number of workers is fixed, and a placement group ends with the job that made it.

In each worker, DistributedDataParallel and the optimizers import all of torch.compile, half of a worker's imports, to
ask two questions. Their answers are known if nothing is compiled.

Only this folder uses private names of Ray and torch: those of `versions.VERSION` and `compiler.TORCH_VERSION`. On other
versions, or if a name is missing, the unmodified classes are used.
"""
