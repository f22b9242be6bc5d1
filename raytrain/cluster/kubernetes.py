"""The checks of a RayCluster or a RayJob. Kubernetes refuses unknown fields only if its server is configured to, and
KubeRay starts invalid settings too."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from raytrain.cluster import fields, security, versions
from raytrain.cluster.document import Finding, Place
from raytrain.files import is_url

_KINDS = ("RayCluster", "RayJob")
_SPOT = {
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "eks.amazonaws.com/capacityType": "spot",
    "karpenter.sh/capacity-type": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
"""Labels of spot nodes, by cloud."""
_REMOTE = ("persistentVolumeClaim", "nfs", "csi", "cephfs", "glusterfs", "azureFile", "ephemeral")
_DEVICE = re.compile(r"(/gpu|\bmig-[\w.]+)$")
"""Resources that are GPUs, or MIG's parts of them, which Ray counts as GPUs."""
_SHELL = ("command", "args", "entrypoint", "runtimeEnvYAML")
"""Fields that a shell reads, which expands variables."""
_SHM = "mount an emptyDir with medium: Memory at /dev/shm"


@dataclass(frozen=True)
class _Group:
    """The head or a group of workers."""

    role: str
    place: Place

    @property
    def pod(self) -> Place:
        return self.place["template"]["spec"]

    @property
    def container(self) -> Place:
        """Ray's: the first."""
        containers = self.pod["containers"].items
        return containers[0] if containers else Place(None, self.pod.line, "containers", there=False)

    @property
    def limits(self) -> Place:
        return self.container["resources"]["limits"]

    @property
    def gpus(self) -> bool:
        return any("gpu" in name for name in self.limits.fields)

    def mounts(self) -> dict[str, tuple[Place, Place]]:
        """By folder, where it is mounted and its volume."""
        volumes = {volume["name"].text: volume for volume in self.pod["volumes"].items}
        return {
            mount["mountPath"].text.rstrip("/"): (mount, volumes[mount["name"].text])
            for mount in self.container["volumeMounts"].items
            if mount["name"].text in volumes
        }


def check(top: Place) -> list[Finding]:
    """Yield the findings for one document; kinds other than Ray's are not checked."""
    kind, version = top["kind"], top["apiVersion"].text
    if not version.startswith("ray.io/"):
        if kind.text in _KINDS:
            return [
                top["apiVersion"].error(
                    f"apiVersion {version!r} is not that of a {kind.text}", "write apiVersion: ray.io/v1"
                )
            ]
        return []
    if kind.text not in _KINDS:
        if kind.text in ("RayService", "RayCronJob"):
            return [kind.warning(f"a {kind.text} is not checked", "check a RayCluster of the same spec")]
        return list(Place({kind.text: kind}, kind.line).unknown(_KINDS, "ray.io"))
    return list(_check(top, kind.text))


def _check(top: Place, kind: str) -> Iterator[Finding]:
    yield from top.unknown(("apiVersion", "kind", "metadata", "spec", "status"), f"a {kind}")
    if top["apiVersion"].text != "ray.io/v1":
        yield top["apiVersion"].error(f"apiVersion {top['apiVersion'].text} is gone", "write apiVersion: ray.io/v1")
    if top["metadata"]["name"].empty and top["metadata"]["generateName"].empty:
        yield top["metadata"].error("there is no metadata.name", "add a name")
    spec = top["spec"]
    if spec.empty:
        yield spec.error("there is no spec", "start from `raytrain cluster init kuberay`")
        return
    cluster = spec
    if kind == "RayJob":
        yield from _job(spec)
        cluster = spec["rayClusterSpec"]
        if cluster.empty:
            return
    yield from security.unexpanded(top, _SHELL)
    yield from security.environment(top)
    yield from _cluster(cluster)
    if kind == "RayJob":
        yield from security.secrets([spec["entrypoint"], spec["runtimeEnvYAML"]])
        if spec["entrypoint"].text:
            yield from _out(spec["entrypoint"], cluster)


def _job(spec: Place) -> Iterator[Finding]:
    misspelt = list(spec.unknown(fields.RAY_JOB, "a RayJob"))
    yield from misspelt
    if any("'entrypoint'" in finding.how for finding in misspelt):
        return
    if spec["entrypoint"].empty and spec["submissionMode"].text != "InteractiveMode":
        yield spec["entrypoint"].error("there is no entrypoint", "add entrypoint: raytrain train ...")
    if spec["clusterSelector"].empty:
        if spec["rayClusterSpec"].empty:
            yield spec["rayClusterSpec"].error("there is no rayClusterSpec", "add the spec of a RayCluster")
        elif spec["shutdownAfterJobFinishes"].value is not True:
            yield spec["shutdownAfterJobFinishes"].warning(
                "the cluster stays when the job has ended, and is paid for", "add shutdownAfterJobFinishes: true"
            )


def _cluster(spec: Place) -> Iterator[Finding]:
    yield from spec.unknown(fields.RAY_CLUSTER, "a RayCluster")
    yield from spec["autoscalerOptions"].unknown(fields.AUTOSCALER, "autoscalerOptions")
    yield from versions.check_version(spec["rayVersion"])
    head = _Group("head", spec["headGroupSpec"])
    workers = [_Group("worker", place) for place in spec["workerGroupSpecs"].items]
    if head.place.empty:
        yield head.place.error("there is no headGroupSpec", "add the head")
        return
    yield from head.place.unknown(fields.HEAD_GROUP, "headGroupSpec")
    for group in workers:
        yield from group.place.unknown(fields.WORKER_GROUP, "a group of workerGroupSpecs")
        yield from _replicas(group.place, spec)
    for group in [head, *workers]:
        yield from _pod(group)
    yield from _token(spec, [head, *workers])
    yield from _head(head, workers)
    yield from _storage(head, workers)


def _replicas(group: Place, spec: Place) -> Iterator[Finding]:
    low, wanted, high = (group[name].number for name in ("minReplicas", "replicas", "maxReplicas"))
    if low is not None and high is not None and low > high:
        yield group["minReplicas"].error(f"minReplicas {low} > maxReplicas {high}", "swap them")
    elif wanted is not None and high is not None and wanted > high:
        yield group["replicas"].warning(f"replicas {wanted} > maxReplicas {high}", f"write replicas: {high}")
    elif wanted is not None and low is not None and wanted < low:
        yield group["replicas"].warning(f"replicas {wanted} < minReplicas {low}", f"write replicas: {low}")
    elif spec["enableInTreeAutoscaling"].value is not True and (not wanted or (high or 0) > wanted):
        yield group["replicas"].warning(
            f"a group of {wanted or 0:g} replicas never grows without the autoscaler",
            "add enableInTreeAutoscaling: true",
        )


def _pod(group: _Group) -> Iterator[Finding]:
    pod, container = group.pod, group.container
    yield from group.place["template"].unknown(("metadata", "spec"), "template")
    yield from pod.unknown(fields.POD, "a pod's spec")
    for place in [*pod["containers"].items, *pod["initContainers"].items]:
        yield from place.unknown(fields.CONTAINER, "a container")
        yield from versions.check_image(place["image"], group.gpus and place is container)
        yield from versions.check_commands([*place["command"].items, *place["args"].items])
        yield from security.secrets([*place["command"].items, *place["args"].items])
        if place["securityContext"]["privileged"].value is True:
            yield place["securityContext"]["privileged"].warning(
                "a privileged container has the whole node", "leave it out: training needs none of it"
            )
    if not container.there:
        yield container.error(f"the {group.role} has no container", "add one with an image")
        return
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod[name].value is True:
            yield pod[name].warning(f"with {name} the pod shares the node's ports or processes", "leave it out")
    for name in ("cpu", "memory"):
        if group.limits[name].empty:
            yield container["resources"].warning(
                f"the {group.role} has no limit of {name}, and Ray takes the node's", "add it under resources.limits"
            )
    yield from _gpu(container["resources"])
    yield from _ray_gpus(group)
    _, shm = group.mounts().get("/dev/shm", (container, Place(None, container.line, there=False)))
    if shm.there and shm["emptyDir"]["medium"].text != "Memory":  # without a mount KubeRay adds one in memory
        yield shm.warning("/dev/shm is on a disk, and Ray's objects are there", _SHM)


def _gpu(resources: Place) -> Iterator[Finding]:
    """Whole GPUs, and HAMi's parts of them."""
    for amounts in (resources["limits"], resources["requests"]):
        nvidia = {name: place for name, place in amounts.fields.items() if name.startswith("nvidia.com/")}
        hami = {name for name in nvidia if name != "nvidia.com/gpu" and "mig-" not in name}
        yield from Place({name: nvidia[name] for name in hami}, amounts.line).unknown(fields.HAMI, "HAMi")
        for name, place in nvidia.items():
            if not re.fullmatch(r"\d+", place.text):
                yield place.error(
                    f"{name}: {place.text} is not a whole number",
                    "write 1 and share it by HAMi's nvidia.com/gpumem, or by --scaling.gpus_per_worker",
                )
        if hami and "nvidia.com/gpu" not in nvidia:
            yield nvidia[min(hami)].error("a part of a GPU needs nvidia.com/gpu as well", "add nvidia.com/gpu: 1")
        for name in ("nvidia.com/gpumem-percentage", "nvidia.com/gpucores"):
            if name in nvidia and (nvidia[name].number or 0) > 100:
                yield nvidia[name].error(f"{name} is {nvidia[name].text} percent", "give at most 100")
        if {"nvidia.com/gpumem", "nvidia.com/gpumem-percentage"} <= set(nvidia):
            yield nvidia["nvidia.com/gpumem"].error("both gpumem and gpumem-percentage are given", "give one of them")


def _ray_gpus(group: _Group) -> Iterator[Finding]:
    """Compare the GPUs of `ray start` with those of the container."""
    said = group.place["rayStartParams"]["num-gpus"]
    gets = sum(place.number or 0 for name, place in group.limits.fields.items() if _DEVICE.search(name))
    if said.text.isdigit() and int(said.text) != gets:
        level = said.error if int(said.text) > gets else said.warning
        yield level(f"num-gpus is {said.text}, and the container's limits give {gets}", f'write num-gpus: "{gets}"')
    for name, asked in group.container["resources"]["requests"].fields.items():
        if _DEVICE.search(name) and asked.text != group.limits[name].text:
            limit = group.limits[name].text or "missing"
            yield asked.error(
                f"the request of {name} is {asked.text}, and its limit is {limit}: Kubernetes refuses the pod",
                "write the same number under limits",
            )


def _token(spec: Place, groups: list[_Group]) -> Iterator[Finding]:
    options = spec["authOptions"]
    yield from options.unknown(("mode", "secretName", "enableK8sTokenAuth"), "authOptions")
    mode = options["mode"]
    if options.there and (not mode.there or mode.text == "token"):
        return
    if mode.there:
        yield mode.error(
            f"authOptions.mode is {mode.text}: anyone who reaches a port can run code", "write mode: token"
        )
        return
    for group in groups:
        variables = {place["name"].text: place for place in group.container["env"].items}
        found = variables.get("RAY_AUTH_MODE")
        if found is None or found["value"].text != "token":
            yield options.error(
                "there is no token: anyone who reaches a port can run code", "add authOptions: {mode: token}"
            )
            return


def _head(head: _Group, workers: list[_Group]) -> Iterator[Finding]:
    service = head.place["serviceType"]
    if service.text in ("NodePort", "LoadBalancer"):
        yield service.error(
            f"a {service.text} opens the dashboard and the jobs' port to the outside",
            "write ClusterIP, and reach it by `kubectl port-forward`",
        )
    if head.place["enableIngress"].value is True:
        yield head.place["enableIngress"].error("an ingress opens the dashboard to the outside", "leave it out")
    if head.gpus and any(group.gpus for group in workers):
        place = next(place for name, place in head.limits.fields.items() if "gpu" in name)
        yield place.warning("the head has a GPU, which is paid for as long as it runs", "leave it to the workers")
    for label, place in head.pod["nodeSelector"].fields.items():
        if place.text.lower() == _SPOT.get(label):
            yield place.warning(
                "the head's node may be reclaimed, and all runs end with it", "let workers alone be spot"
            )


def _storage(head: _Group, workers: list[_Group]) -> Iterator[Finding]:
    """Check that all pods share a folder."""
    if not workers:
        return
    seen: list[set[str]] = []
    for group in [head, *workers]:
        shared = {}
        for folder, (mount, volume) in group.mounts().items():
            if any(not volume[kind].empty for kind in _REMOTE):
                shared[folder] = mount
        if not shared:
            local = [mount for folder, (mount, _) in group.mounts().items() if folder != "/dev/shm"]
            place = local[0] if local else group.container["volumeMounts"]
            yield place.warning(
                f"the {group.role} mounts no volume that other nodes see: runs are local to a node",
                "mount a persistentVolumeClaim (ReadWriteMany), or keep runs at a URL",
            )
            return
        seen.append(set(shared))
    if not set.intersection(*seen):
        place = workers[0].container["volumeMounts"]
        yield place.warning(
            f"head and workers share no folder: {', '.join(sorted(seen[0]))} and {', '.join(sorted(seen[1]))}",
            "mount one claim at one path in all",
        )


def _out(entrypoint: Place, spec: Place) -> Iterator[Finding]:
    """Check where a RayJob writes its run."""
    try:
        words = shlex.split(entrypoint.text)
    except ValueError as error:
        yield entrypoint.error(f"the entrypoint is not a command: {error}", "close the quotes")
        return
    if "train" not in words and "sweep" not in words:
        return
    out = next((words[i + 1] for i, word in enumerate(words[:-1]) if word == "--out"), None)
    out = out or next((word.partition("=")[2] for word in words if word.startswith("--out=")), None)
    folders = [
        folder
        for folder, (_, volume) in _Group("head", spec["headGroupSpec"]).mounts().items()
        if any(not volume[kind].empty for kind in _REMOTE)
    ]
    if out is not None and is_url(out):
        return
    if out is None or not any(out == folder or out.startswith(f"{folder}/") for folder in folders):
        what = f"--out {out}" if out else "without --out the run"
        yield entrypoint.error(
            f"{what} is in the head's own container, and ends with it",
            f"write --out {folders[0] if folders else '/shared'}/runs",
        )
