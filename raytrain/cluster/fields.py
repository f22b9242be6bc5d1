"""The fields that Ray's providers and KubeRay know. Ray's schema accepts any name under `provider` and `node_config`. A
misspelt name there has no effect, or fails when a machine is created.

From the sources of Ray 2.60 (what its providers read, its template for Azure), AWS's RunInstances, Google's instances,
and the references of KubeRay 1.5 to 1.7 and Kubernetes. Where a name is missing, a correct file is refused: add it.
"""

from __future__ import annotations

_ANY_PROVIDER = {
    *("type", "region", "availability_zone", "cache_stopped_nodes", "use_internal_ips", "disable_node_updaters"),
    *("disable_launch_config_check", "foreground_node_launch", "worker_liveness_check", "worker_rpc_drain"),
}
PROVIDERS: dict[str, set[str]] = {
    "aws": _ANY_PROVIDER | {"key_pair", "security_group", "cloudwatch", "aws_credentials"},
    "gcp": _ANY_PROVIDER | {"project_id", "gcp_credentials"},
    "azure": _ANY_PROVIDER
    | {"location", "resource_group", "subscription_id", "tags", "unique_id", "subnet_mask", "use_external_head_ip"}
    | {"msi_name", "msi_resource_group", "msi_identity_id", "msi_identity_principal_id", "subnet_id"},
    "local": _ANY_PROVIDER | {"head_ip", "worker_ips", "external_head_ip", "coordinator_address"},
}
"""The fields of `provider`, by its type."""
NEEDED: dict[str, tuple[str, ...]] = {
    "aws": ("region",),
    "gcp": ("region", "availability_zone", "project_id"),
    "azure": ("location", "resource_group"),
    "local": (),
}
"""The required fields."""

AWS_NODE = {
    *("AdditionalInfo", "BlockDeviceMappings", "CapacityReservationSpecification", "ClientToken", "CpuOptions"),
    *("CreditSpecification", "DisableApiStop", "DisableApiTermination", "DryRun", "EbsOptimized"),
    *("ElasticGpuSpecification", "ElasticInferenceAccelerators", "EnablePrimaryIpv6", "EnclaveOptions"),
    *("HibernationOptions", "IamInstanceProfile", "ImageId", "InstanceInitiatedShutdownBehavior"),
    *("InstanceMarketOptions", "InstanceType", "Ipv6AddressCount", "Ipv6Addresses", "KernelId", "KeyName"),
    *("LaunchTemplate", "LicenseSpecifications", "MaintenanceOptions", "MaxCount", "MetadataOptions", "MinCount"),
    *("Monitoring", "NetworkInterfaces", "NetworkPerformanceOptions", "Operator", "Placement"),
    *("PrivateDnsNameOptions", "PrivateIpAddress", "RamdiskId", "SecondaryInterfaces", "SecurityGroupIds"),
    *("SecurityGroups", "SubnetId", "SubnetIds", "TagSpecifications", "UserData"),
}
"""RunInstances, and Ray's SubnetIds."""
AWS_INSIDE: dict[str, set[str]] = {
    "MetadataOptions": {
        *("HttpTokens", "HttpPutResponseHopLimit", "HttpEndpoint", "HttpProtocolIpv6", "InstanceMetadataTags"),
    },
    "InstanceMarketOptions": {"MarketType", "SpotOptions"},
    "IamInstanceProfile": {"Arn", "Name"},
    "BlockDeviceMappings": {"Ebs", "NoDevice", "DeviceName", "VirtualName"},
}
"""The fields of some nested structures, whose names are easily misspelt."""
AWS_CHOICES: dict[tuple[str, str], tuple[str, ...]] = {
    ("MetadataOptions", "HttpTokens"): ("optional", "required"),
    ("MetadataOptions", "HttpEndpoint"): ("disabled", "enabled"),
    ("InstanceMarketOptions", "MarketType"): (
        *("spot", "capacity-block", "interruptible-capacity-reservation", "on-demand"),
    ),
}
GCP_NODE = {
    *("advancedMachineFeatures", "canIpForward", "confidentialInstanceConfig", "deletionProtection", "description"),
    *("disks", "displayDevice", "guestAccelerators", "hostname", "instanceEncryptionKey"),
    *("keyRevocationActionType", "labels", "machineType", "metadata", "minCpuPlatform", "name"),
    *("networkInterfaces", "networkPerformanceConfig", "params", "privateIpv6GoogleAccess", "reservationAffinity"),
    *("resourcePolicies", "scheduling", "serviceAccounts", "shieldedInstanceConfig", "shieldedVmConfig"),
    *("sourceInstanceTemplate", "sourceMachineImage", "sourceMachineImageEncryptionKey", "tags", "zone"),
    *("acceleratorConfig", "acceleratorType", "cidrBlock", "dataDisks", "networkConfig", "runtimeVersion"),
    *("schedulingConfig", "serviceAccount"),
}
"""Compute Engine's instance, and a TPU's node."""
AZURE_NODE = {"azure_arm_parameters", "tags"}
AZURE_MACHINE = {
    *("adminUsername", "publicKey", "imagePublisher", "imageOffer", "imageSku", "imageVersion", "imageId", "vmSize"),
    *("osDiskSize", "priority", "evictionPolicy", "billingProfile", "enableAcceleratedNetworking"),
    "availability_zone",
}
"""The parameters of Ray's template of a machine, but for those that Ray sets."""
AZURE_PRIORITIES = ("Regular", "Low", "Spot")

RAY_CLUSTER = {
    *("authOptions", "autoscalerOptions", "enableInTreeAutoscaling", "gcsFaultToleranceOptions", "headGroupSpec"),
    *("headServiceAnnotations", "managedBy", "networkIsolation", "networkPolicy", "rayVersion", "suspend"),
    *("tlsOptions", "upgradeStrategy", "workerGroupSpecs"),
}
RAY_JOB = {
    *("activeDeadlineSeconds", "backoffLimit", "clusterSelector", "deletionPolicy", "deletionStrategy", "entrypoint"),
    *("entrypointNumCpus", "entrypointNumGpus", "entrypointResources", "jobId", "managedBy", "metadata"),
    *("preRunningDeadlineSeconds", "rayClusterSpec", "runtimeEnvYAML", "schedule", "shutdownAfterJobFinishes"),
    *("submissionMode", "submitterConfig", "submitterPodTemplate", "suspend", "ttlSecondsAfterFinished"),
}
HEAD_GROUP = {
    *("enableIngress", "headService", "labels", "rayStartParams", "resources", "serviceType", "template"),
}
WORKER_GROUP = {
    *("groupName", "idleTimeoutSeconds", "labels", "maxReplicas", "minReplicas", "numOfHosts", "rayStartParams"),
    *("replicas", "resources", "scaleStrategy", "suspend", "template"),
}
AUTOSCALER = {
    *("env", "envFrom", "idleTimeoutSeconds", "image", "imagePullPolicy", "resources", "securityContext"),
    *("upscalingMode", "version", "volumeMounts"),
}
POD = {
    *("activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy"),
    *("enableServiceLinks", "ephemeralContainers", "hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostUsers"),
    *(
        "hostname",
        "hostnameOverride",
        "imagePullSecrets",
        "initContainers",
        "nodeName",
        "nodeSelector",
        "os",
        "overhead",
    ),
    *("preemptionPolicy", "priority", "priorityClassName", "readinessGates", "resourceClaims", "resources"),
    *("restartPolicy", "runtimeClassName", "schedulerName", "schedulingGates", "securityContext", "serviceAccount"),
    *("serviceAccountName", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds"),
    *("tolerations", "topologySpreadConstraints", "volumes"),
}
CONTAINER = {
    *("args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name", "ports"),
    *("readinessProbe", "resizePolicy", "resources", "restartPolicy", "restartPolicyRules", "securityContext"),
    *("startupProbe", "stdin", "stdinOnce", "terminationMessagePath", "terminationMessagePolicy", "tty"),
    *("volumeDevices", "volumeMounts", "workingDir"),
}
HAMI = {
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "nvidia.com/priority",
}
"""The resources of HAMi that a container may request: https://project-hami.io."""
