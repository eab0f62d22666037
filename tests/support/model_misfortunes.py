"""What users and bad luck do to pods and nodes of the model cluster."""

from __future__ import annotations

from support.model_objects import LOADING_TICKS, ModelNode, ModelPod


class Misfortunes:
    """Part of the model cluster."""

    now_s: float
    pods: dict[str, ModelPod]
    nodes: dict[str, ModelNode]

    def work(self, pod: ModelPod, *, patience: int) -> None:
        """It gets conversations, which leave that many ticks after they may not stay."""
        pod.busy, pod.patience, pod.idle_ticks = True, patience, 0

    def restart(self, pod: ModelPod) -> None:
        """Its container ends once and starts again."""
        pod.ready, pod.loading, pod.restarts = False, LOADING_TICKS, pod.restarts + 1

    def wedge(self, pod: ModelPod) -> None:
        """It will never be ready again."""
        pod.ready, pod.wedged = False, True

    def lose(self, pod: ModelPod) -> None:
        """It is gone, and nobody says why."""
        del self.pods[pod.name]

    def cordon(self, node: ModelNode) -> None:
        node.cordoned = not node.cordoned

    def lose_node(self, node: ModelNode) -> None:
        """Its kubelet tells nothing any more; or, the second time, the cloud has taken it."""
        node.gone = not node.ready
        node.ready, node.since_s = False, self.now_s

    def lose_a_gpu(self, node: ModelNode) -> None:
        node.gpus, node.gpus_since_s = node.gpus - 1, self.now_s

    def repair(self, node: ModelNode) -> None:
        """As good as new."""
        if not node.gone:
            self.nodes[node.name] = ModelNode(node.name, since_s=self.now_s, gpus_since_s=self.now_s)
