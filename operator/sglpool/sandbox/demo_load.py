"""Chapters of a pool under load: agents work, a session is thick, the pool grows, a node is lost, the pool shrinks.

Every wait has a limit and a sentence for when it passes. Not here: the agents themselves (`traffic`).
"""

from __future__ import annotations

from sglpool.sandbox.demo_pool import DRAIN_TIMEOUT, FEWEST, MOST
from sglpool.sandbox.demo_scene import POOL, READY_S, SPEED, Scene
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodes import delete_node, stop_node
from sglpool.sandbox.report_data import Replica, Sample, State
from sglpool.sandbox.traffic import Mix

GROW_S, ROUTER_S, LOST_S, SHRINK_S = 150.0, 30.0, 240.0, 300.0
SETTLE_S, NOTICE_S = 3.0, 1.0
MIX = Mix(speed=SPEED, output_factor=12.0)
"""Answers twelve times as long as real ones: as many requests in flight from a twelfth of the requests a second."""
FEW, MANY, THICK, LAST = 3, 6, 6, 1
EVENTS = "custom-columns=REASON:.reason,MESSAGE:.message"


def work(scene: Scene) -> None:
    """A few sessions, until enough was answered to speak of it."""
    scene.stage.title(f"{FEW} coding agents work")
    scene.stage.say(
        "Sessions with the statistics of real ones: contexts that grow turn by turn, pauses while tools run, "
        "compactions. Only their answers are longer, so that this machine can carry as many at once."
    )
    scene.show.chapter(f"{FEW} agent sessions begin")
    since_s = scene.show.now_s()
    agents = scene.agents()
    agents.aim(FEW)
    scene.stage.until(
        lambda: len(scene.show.requests(since_s)) >= 10 * FEW, "hardly a request was answered", limit_s=60
    )
    scene.stage.whisper(scene.show.line())


def grow(scene: Scene) -> None:
    """More work than the pool was made for, most of it one session's, until more replicas are Ready."""
    scene.stage.title(f"{MANY} agents, and a thick session: one more with {THICK} conversations at once")
    scene.stage.say("The thick session's conversations are spread, each with a home of its own. The pool has to grow.")
    scene.show.chapter(f"{MANY} agent sessions and a thick one of {THICK} conversations")
    agents = scene.agents()
    agents.aim(MANY)
    agents.thick(THICK)
    scene.stage.until(
        scene.show.seen(lambda now: (now.decided or 0) >= MOST),
        f"the autoscaler does not want {MOST} replicas",
        limit_s=GROW_S,
    )
    scene.show.chapter(f"The autoscaler wants {scene.show.now.decided}: {scene.show.now.why}")
    scene.stage.kubectl("get", "sglpool")
    scene.stage.say(scene.show.now.because)
    scene.stage.sglpool("router", "show", POOL)
    scene.stage.until(
        scene.show.seen(lambda now: now.ready >= MOST), f"there are no {MOST} replicas ready", limit_s=READY_S
    )
    scene.show.chapter(f"Ready with {MOST} replicas")
    scene.stage.kubectl("get", "pods", "-o", "wide")
    scene.stage.hold(SETTLE_S)
    scene.stage.sglpool("router", "show", POOL)


def lose(scene: Scene) -> None:
    """Take a node away as a cloud takes back a spot machine, and wait until its replica is Ready on another one."""
    node, lost = victim(scene.show.now)
    scene.stage.title(f"A spot machine is taken back: {node}, with {', '.join(lost)} on it")
    failed_before = scene.show.failed
    scene.show.chapter(f"Node {node} loses its power")
    scene.stage.typed(f"sglpool sandbox node stop {node}")
    stop_node(scene.api, node)
    scene.stage.say(
        "Nobody was warned. The router sees it by the next request or poll, and sends conversations elsewhere."
    )
    scene.stage.until(
        scene.show.seen(lambda now: not _on(now, node, State.SERVING)), "the router does not see it", limit_s=ROUTER_S
    )
    # Clients have to notice, too.
    scene.stage.hold(NOTICE_S)
    scene.stage.say(_cut(scene.show.failed - failed_before))
    scene.stage.say("The cloud tells the cluster that the machine is gone, and the operator needs to know no more:")
    scene.show.chapter(f"Node {node} is gone from the cluster")
    scene.stage.typed(f"sglpool sandbox node delete {node}")
    delete_node(scene.api, node)
    scene.stage.until(
        scene.show.seen(lambda now: now.ready >= MOST and not _on(now, node)),
        "the lost replica is not replaced",
        limit_s=LOST_S,
    )
    scene.show.chapter(f"Ready with {MOST} replicas again, on another node")
    scene.stage.kubectl("get", "pods", "-o", "wide")


def shrink(scene: Scene) -> None:
    """Little work, until the replicas that are too many have been emptied and are gone."""
    scene.stage.title("The agents go home: the pool shrinks")
    scene.stage.say(
        "Not at once: the load has to be low for a quarter of an hour of the autoscaler's time. Then replicas are "
        f"marked as draining. Their conversations leave at their own pauses, the last of them after {DRAIN_TIMEOUT}."
    )
    scene.show.chapter("One agent session is left")
    agents = scene.agents()
    agents.aim(LAST)
    agents.thick(0)
    scene.stage.until(
        scene.show.seen(lambda now: any(replica.state is State.DRAINING for replica in now.replicas)),
        "no replica is draining",
        limit_s=SHRINK_S,
    )
    scene.show.chapter(f"The autoscaler wants {scene.show.now.decided}: {scene.show.now.why}")
    scene.stage.kubectl("get", "sglpool")
    scene.stage.say(scene.show.now.because)
    scene.stage.sglpool("router", "show", POOL)
    scene.stage.until(
        scene.show.seen(lambda now: len(now.replicas) == FEWEST),
        "replicas that are not wanted are still there",
        limit_s=SHRINK_S,
    )
    scene.show.chapter(f"{FEWEST} replicas are left")
    scene.stage.kubectl("get", "sglpool")
    about_pool = f"--field-selector=involvedObject.name={POOL}"
    scene.stage.kubectl("get", "events", about_pool, "--sort-by=.metadata.creationTimestamp", f"-o={EVENTS}")


def victim(now: Sample) -> tuple[str, list[str]]:
    """The node to lose and the replicas on it: as few as possible, and of those that have as much to do as possible."""
    by_node: dict[str, list[Replica]] = {}
    for replica in now.replicas:
        if replica.state is State.SERVING:
            by_node.setdefault(replica.node, []).append(replica)
    if len(by_node) < 2:
        raise SandboxError("all replicas are on one node: losing it would lose the pool")
    node = min(sorted(by_node), key=lambda name: (len(by_node[name]), -sum(r.conversations for r in by_node[name])))
    return node, [replica.pod for replica in by_node[node]]


def _cut(requests: int) -> str:
    if not requests:
        return "No request was cut: none was under way there, or the router sent it on."
    many = "1 request was" if requests == 1 else f"{requests} requests were"
    return f"{many} cut so far, under way on the lost node. The agents go on with their next ones."


def _on(now: Sample, node: str, state: State | None = None) -> bool:
    """Whether a replica is on the node, in this state if one is named."""
    return any(replica.node == node and state in (None, replica.state) for replica in now.replicas)
