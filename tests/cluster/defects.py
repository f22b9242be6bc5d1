"""What is broken on purpose in the cluster files, one defect each.

Each: the file, what is edited and into what, where the finding stands (the first place in the broken file with these words;
for what is missing, its parent), whether it is an error or a warning, a part of what it says, and one of its remedy.
"""

from __future__ import annotations

DEFECTS = [
    # fields
    ("aws", "idle_timeout_minutes: 10", "idle_timeout_minute: 10", "idle_timeout_minute:", "E", "has no field", "'idle_timeout_minutes'"),
    ("aws", "  cache_stopped_nodes: false", "  cache_stopped_nodes: false\n  availabilty_zone: us-west-2a", "availabilty_zone", "E", "provider aws has no field", "'availability_zone'"),
    ("aws", "InstanceType: g6.xlarge", "InstanceType: g6.xlarge\n      IamInstanceProfil: {Name: x}", "IamInstanceProfil", "E", "AWS node_config has no field", "'IamInstanceProfile'"),
    ("aws", "MetadataOptions: {HttpTokens: required}", "MetadataOptions: {HttpTokens: required, HttpEndPoint: enabled}", "HttpEndPoint", "E", "MetadataOptions has no field", "'HttpEndpoint'"),
    ("aws", "MarketType: spot", "MarketType: sport", "MarketType", "E", "MarketType is 'sport'", "spot, capacity-block"),
    ("gcp", "machineType: g2-standard-8", "machinetype: g2-standard-8", "machinetype", "E", "GCP node_config has no field", "'machineType'"),
    ("azure", "priority: Spot", "priorty: Spot", "priorty", "E", "azure_arm_parameters has no field", "'priority'"),
    ("aws", "ssh_user: ubuntu", "ssh_usr: ubuntu", "ssh_usr", "E", "auth has no field", "'ssh_user'"),
    ("aws", "min_workers: 0", "min_worker: 0", "min_worker:", "E", "node type 'gpu' has no field", "'min_workers'"),
    ("aws", "  type: aws", "  type: asw", "type: asw", "E", "Ray's launcher has no field 'asw'", "'aws'"),
    ("aws", "max_workers: 4\nidle", "max_workers: four\nidle", "max_workers: four", "E", "Ray refuses it: max_workers: 'four' is not of type 'integer'", "schema"),
    ("gcp", "  project_id: your-project  # EDIT\n", "", "provider:", "E", "provider gcp needs project_id", "add project_id"),
    ("gcp", "availability_zone: us-west1-a", "availability_zone: us-east1-a", "availability_zone", "E", "zone us-east1-a is not in region us-west1", "us-west1-a"),
    ("aws", "head_node_type: head", "head_node_type: haed", "head_node_type", "E", "'haed' is no node type", "head, gpu"),
    ("aws", "cluster_name: raytrain", "cluster_name: raytrain\nmax_workers: 2", "\nmax_workers: 4\n", "E", "'max_workers' stands twice", "keep one"),
    # sums
    ("aws", "    min_workers: 0\n    max_workers: 4", "    min_workers: 8\n    max_workers: 8", "\nmax_workers: 4", "E", "max_workers is 4, and the node types' min_workers come to 8", "raise it to 8"),
    ("aws", "    min_workers: 0\n    max_workers: 4", "    min_workers: 3\n    max_workers: 2", "    min_workers: 3", "E", "min_workers 3 > max_workers 2", "swap them"),
    ("aws", "    max_workers: 4", "    max_workers: 2", "\nmax_workers: 4", "W", "the node types' come to 2", "max_workers: 2"),
    ("on-premises", "max_workers: 2", "max_workers: 3", "max_workers: 3", "W", "there are 2 worker_ips", "max_workers: 2"),
    ("on-premises", "[192.0.2.11, 192.0.2.12]", "[192.0.2.11, 192.0.2.10]", "worker_ips: [", "E", "192.0.2.10 stands twice", "each machine once"),
    # versions
    ("aws", "ray:2.60.0-py312-cu130", "ray:2.59.0-py312-cu130", "image:", "E", "has Ray 2.59.0, and 2.60.0 is locked", "rayproject/ray:2.60.0-py312-cu130"),
    ("aws", "ray:2.60.0-py312-cu130", "ray:2.60.0-py312-cu128", "image:", "E", "has CUDA 12.8, and torch's is 13", "-cu130"),
    ("aws", "ray:2.60.0-py312-cu130", "ray:2.60.0-py310-cu130", "image:", "E", "Python 3.10, and raytrain needs 3.11", "-py312"),
    ("aws", "ray:2.60.0-py312-cu130", "ray:latest-gpu", "image:", "E", "another image tomorrow", "pin it"),
    ("aws", "ray:2.60.0-py312-cu130", "ray:2.60.0-py312-cpu", "image:", "E", "has no CUDA, and its nodes have GPUs", "-cu130"),
    ("kuberay", "rayVersion: 2.60.0", "rayVersion: 2.46.0", "rayVersion", "E", "rayVersion is 2.46.0", "2.60.0"),
    ("aws", "  - cd ~/raytrain && make setup", "  - pip install torch==2.9.0", "torch==2.9.0", "E", "installs torch 2.9.0", "make setup"),
    ("aws", "  - cd ~/raytrain && make setup", "  - pip install -U 'ray[default]'", "-U", "E", "whichever ray is newest", "make setup"),
    ("on-premises", "  - cd ~/raytrain && make setup", "  - pip install https://s3-us-west-2.amazonaws.com/ray-wheels/latest/ray-3.0.0.dev0.whl", "dev0", "E", "development wheel", "make setup"),
    ("aws", "ImageId: ami-0123456789abcdef0", "ImageId: ''", "ImageId", "E", "Ubuntu 18.04", "AMI of your region"),
    ("azure", "imageVersion: 22.04.2025081401", "imageVersion: latest", "imageVersion", "W", "another one tomorrow", "name its version"),
    # who can get in
    ("aws", "  cache_stopped_nodes: false", "  cache_stopped_nodes: false\n  security_group:\n    IpPermissions:\n      - {FromPort: 22, ToPort: 22, IpProtocol: tcp, IpRanges: [{CidrIp: 0.0.0.0/0}]}", "CidrIp", "E", "whole world", "A.B.C.D/32"),
    ("aws", "      SecurityGroupIds: [sg-0123456789abcdef0]  # EDIT\n", "", "node_config: &node", "E", "without SecurityGroupIds, and the group that Ray makes opens port 22", "group of your own"),
    ("aws", "HttpTokens: required", "HttpTokens: optional", "HttpTokens", "E", "IMDSv1 hands credentials", "{HttpTokens: required}"),
    ("azure", "  use_internal_ips: true\n", "", "provider:", "E", "open port 22", "use_internal_ips: true"),
    ("gcp", "--head --port=6379", "--head --port=6379 --dashboard-host=0.0.0.0", "--dashboard-host", "W", "listens on all addresses", "ray dashboard"),
    ("kuberay", "serviceType: ClusterIP", "serviceType: LoadBalancer", "serviceType", "E", "to the outside", "ClusterIP"),
    # the token
    ("aws", "export RAY_AUTH_MODE=token; ulimit -n 65536; ~/raytrain/.venv/bin/ray start --head", "ulimit -n 65536; ~/raytrain/.venv/bin/ray start --head", "ray start --head", "E", "the head starts without RAY_AUTH_MODE=token", "export RAY_AUTH_MODE=token"),
    ("gcp", "export RAY_AUTH_MODE=token; ulimit -n 65536; ~/raytrain/.venv/bin/ray start --address", "~/raytrain/.venv/bin/ray start --address", "ray start --address", "E", "the worker starts without RAY_AUTH_MODE=token", "export RAY_AUTH_MODE=token"),
    ("azure", "  - export RAY_AUTH_MODE=token; ulimit -n 65536; ~/raytrain/.venv/bin/ray start --head", "  - export RAY_AUTH_MODE=token\n  - ~/raytrain/.venv/bin/ray start --head", "ray start --head", "E", "in the same command", "export RAY_AUTH_MODE=token; "),
    ("aws", "  ~/.ray/auth_token: ~/.ray/auth_token\n", "", "file_mounts:", "E", "bring no token", "~/.ray/auth_token: ~/.ray/auth_token"),
    ("aws", "  ~/.ray/auth_token: ~", "  /home/ubuntu/.ray/auth_token: ~", "/home/ubuntu", "E", "not the home of who runs Ray in the container", "~/.ray/auth_token"),
    ("aws", "  - cd ~/raytrain && make setup", "  - cd ~/raytrain && make setup\n  - echo AWS_SECRET_ACCESS_KEY=abc >> ~/.bashrc", "AWS_SECRET", "E", "in the clear", "mode 600"),
    ("kuberay", "  authOptions:\n    mode: token\n", "", "spec:", "E", "there is no token", "{mode: token}"),
    ("kuberay-job", "mode: token", "mode: disabled", "mode:", "E", "whoever reaches a port runs code", "mode: token"),
    # where runs are kept
    ("on-premises", "  - mountpoint -q /shared  # EDIT\n", "", "cluster_name: raytrain", "E", "no command mounts a folder that all nodes share", "mountpoint -q /shared"),
    ("aws", "    - -v /shared:/shared\n", "", "sudo mount", "E", "the container does not see it", "-v /shared:/shared"),
    ("kuberay", "persistentVolumeClaim: {claimName: raytrain}", "emptyDir: {}", "{name: shared, mountPath", "E", "runs are local to a node", "persistentVolumeClaim"),
    ("kuberay-job", "--out /shared/runs", "--out /home/ray/runs", "entrypoint", "E", "in the head's own container", "--out /shared/runs"),
    # set-up and start
    ("aws", "setup_commands:\n  - command -v make >/dev/null || (sudo apt-get update -q && sudo apt-get install -y -q make)\n  - cd ~/raytrain && make setup\n", "", "cluster_name", "E", "Ray's own install a development wheel", "make setup"),
    ("gcp", "--autoscaling-config=~/ray_bootstrap_config.yaml", "", "--head", "E", "no worker ever starts", "--autoscaling-config"),
    ("aws", "$RAY_HEAD_IP:6379", "$RAY_HEAD_IP:6380", "$RAY_HEAD_IP", "E", "at port 6380, and the head listens at 6379", "one port"),
    ("azure", "  container_name: raytrain\n", "", "docker:", "E", "no container_name", "container_name: raytrain"),
    ("aws", "  container_name: raytrain", "  container_name: raytrain\n  disable_shm_size_detection: true", "disable_shm", "E", "64 MiB of shared memory", "--shm-size"),
    ("kuberay", "              - {name: shm, mountPath: /dev/shm}\n        volumes", "        volumes", "volumeMounts:", "E", "the head has 64 MiB of /dev/shm", "medium: Memory"),
    ("aws", "  ~/raytrain/raytrain: raytrain\n", "  ~/raytrain: .\n", "~/raytrain: .", "W", "with .venv and runs", "one by one"),
    ("gcp", 'rsync_exclude: ["__pycache__/"]', 'rsync_exclude: ["__pycache__/", "data/"]', "rsync_exclude", "E", "also raytrain/data", "/data/"),
    # what is called back, and what is paid for
    ("aws", "      InstanceType: m6i.xlarge", "      InstanceType: m6i.xlarge\n      InstanceMarketOptions: {MarketType: spot}", "MarketType: spot}", "E", "the head may be called back", "workers alone"),
    ("gcp", "      machineType: e2-standard-4", "      machineType: e2-standard-4\n      scheduling: [{preemptible: true}]", "preemptible", "E", "the head may be called back", "workers alone"),
    ("aws", "InstanceType: m6i.xlarge", "InstanceType: g6.xlarge", "InstanceType: g6.xlarge", "W", "the head has a GPU", "without one"),
    ("aws", "  cache_stopped_nodes: false  # terminate, so that `ray down` leaves no disk to pay for\n", "", "provider:", "W", "stopped and kept", "cache_stopped_nodes: false"),
    ("kuberay-job", "  shutdownAfterJobFinishes: true\n", "", "spec:", "W", "the cluster stays", "shutdownAfterJobFinishes: true"),
    # Kubernetes
    ("kuberay", "apiVersion: ray.io/v1\n", "apiVersion: ray.io/v1alpha1\n", "apiVersion", "E", "is gone", "ray.io/v1"),
    ("kuberay", "kind: RayCluster", "kind: RayClusters", "kind:", "E", "no field 'RayClusters'", "'RayCluster'"),
    ("kuberay", "workerGroupSpecs", "workerGroupSpec", "workerGroupSpec:", "E", "RayCluster has no field", "'workerGroupSpecs'"),
    ("kuberay", "maxReplicas: 4", "maxReplica: 4", "maxReplica:", "E", "workerGroupSpecs has no field", "'maxReplicas'"),
    ("kuberay", "  enableInTreeAutoscaling: true\n", "", "replicas: 1", "E", "never grows", "enableInTreeAutoscaling: true"),
    ("kuberay", "nvidia.com/gpu: 1\n              volumeMounts", "nvidia.com/gpu: 0.5\n              volumeMounts", "nvidia.com/gpu: 0.5", "E", "no whole number", "nvidia.com/gpumem"),
    ("kuberay", "nvidia.com/gpu: 1\n              volumeMounts", "nvidia.com/gpu: 1\n                  nvidia.com/gpu-mem: 8000\n              volumeMounts", "gpu-mem", "E", "HAMi has no field", "'nvidia.com/gpumem'"),
    ("kuberay-job", "entrypoint:", "entrypiont:", "entrypiont", "E", "RayJob has no field", "'entrypoint'"),
    ("kuberay", "        containers:\n          - name: ray-head", "        hostNetwork: true\n        containers:\n          - name: ray-head", "hostNetwork", "E", "the node's own", "leave it out"),
]  # fmt: skip
