"""`./cluster chaos`: shows and changes the local cloud's settings, and injects faults into machines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from cli.hints import hint
from cli.providers.local import clusters, published_settings
from infra.config.cluster import LocalConfig
from infra.config.mistakes import ConfigError, Mistake, from_pydantic, near, shown, unknown_key
from infra.config.rules.local import pools
from infra.design import local_cloud
from infra.errors import EXIT_REFUSED, NotUpError, UserError
from infra.program.stack import Stack
from localcloud.behaviour import CAPACITY
from node.design.local_cloud import CloudBehaviour
from node.slurm.hostlist import fold
from node.system import rpc
from node.system.codec import to_json
from operations.access import StackUp
from operations.local.run_directory import RunDirectory

if TYPE_CHECKING:
    from infra.config import StackConfig

CALL_SECONDS = 30.0
KEYS = tuple(to_json(CloudBehaviour()))

SENTENCES = {
    "kill": "{node} is dead: its machine has lost its power",
    "freeze": "{node} is frozen; `{thaw}` lets it go on",
    "thaw": "{node} goes on",
    "cut": "{node} has no network; `{join}` gives it back",
    "join": "{node} has its network",
}


def show(stack: Stack, config: StackConfig) -> dict[str, Any]:
    """Return the current and the configured value of each key, and the machines with a fault.

    Returns:
        {"keys": [{"key", "value", "stack_file", "meaning"}],
         "machines": [{"node", "state", "registers", "frozen", "cut", "notice"}]}; `notice` in seconds since
        the epoch, or None.

    Raises:
        UserError: The stack is not on the local cloud, or not up.
    """
    now, configured = flat(_call(stack, config, "limits")), flat(_stack_file(config))
    pool_keys = dict.fromkeys(
        [CAPACITY + p for p in _pools(stack, config)] + [*_pool_keys(now), *_pool_keys(configured)]
    )
    order = [k for key in KEYS for k in (pool_keys if key == "capacity" else [key])]
    machines = _call(stack, config, "inspect")["machines"]
    wanted = ("node", "state", "registers", "frozen", "cut", "notice")
    return {
        "keys": [
            {"key": key, "value": now.get(key), "stack_file": configured.get(key), "meaning": _meaning(key)}
            for key in order
        ],
        "machines": [
            {name: m[name] for name in wanted}
            for m in machines
            if m["frozen"] or m["cut"] or m["notice"] is not None or not m["registers"]
        ],
    }


def change(stack: Stack, config: StackConfig, words: Sequence[str]) -> str:
    """Change keys. If one of them is wrong, none is changed.

    Args:
        words: `KEY=VALUE` for each key.

    Returns:
        What was done, on one line.

    Raises:
        UserError: A key or a value is wrong (exit 2), or the stack is not on the local cloud, or not up.
    """
    before = flat(_call(stack, config, "limits"))
    changes = parse(words, [*_pools(stack, config), *(k.removeprefix(CAPACITY) for k in _pool_keys(before))])
    return _difference(before, flat(_call(stack, config, "limits", **changes)), changes)


def clear(stack: Stack, config: StackConfig) -> str:
    """Restore the stack file's values, and thaw and reconnect machines. An announced preemption stays.

    Returns:
        What was done, on one line.

    Raises:
        UserError: The stack is not on the local cloud, or not up.
    """
    before = flat(_call(stack, config, "limits"))
    after = flat(_call(stack, config, "limits", **_stack_file(config)))
    done = [_difference(before, after, sorted({*before, *after}))]
    for machine in _call(stack, config, "inspect")["machines"]:
        for wrong, action in (("frozen", "thaw"), ("cut", "join")):
            if machine[wrong]:
                done.append(act(stack, config, action, machine["node"]))
    return "; ".join(text for text in done if text) or "nothing was set: all is as the stack file says"


def act(stack: Stack, config: StackConfig, action: str, node: str, notice: float | None = None) -> str:
    """Inject a fault into a node's machine.

    Args:
        action: one of `localcloud.fault_injection.ACTIONS`.
        notice: Only for `preempt`: seconds until the machine ends.

    Returns:
        What was done, on one line.

    Raises:
        UserError: There is no such machine, or this cannot happen to it.
    """
    running = [m["node"] for m in _call(stack, config, "inspect")["machines"]]
    if node not in running:
        meant = near(node, running)
        state = f"running now: {fold(running)}" if running else "nothing runs now"
        advice = f"; did you mean {meant}?" if meant else ""
        raise UserError(
            f"no machine of stack {stack.name} runs as {node}; {state}{advice}", code="chaos.no-machine"
        )
    machine = _call(stack, config, "fault", action=action, node=node, notice=notice)
    if action == "preempt":
        left = round(machine["notice"] - time.time()) if notice and machine["notice"] else 0
        return f"the cloud takes {node} in {left} s" if left > 0 else f"the cloud has taken {node}"
    thaw, join = (hint(f"chaos {verb} {node}", stack.name) for verb in ("thaw", "join"))
    return SENTENCES[action].format(node=node, thaw=thaw, join=join)


def parse(words: Iterable[str], known: Iterable[str]) -> dict[str, Any]:
    """Return key -> value; the value is `None` if the key is cleared.

    Args:
        words: `KEY=VALUE` for each key.
        known: The pools that `capacity` may name.

    Raises:
        ConfigError: The words have mistakes; the message lists all of them.
    """
    changes: dict[str, Any] = {}
    mistakes: list[Mistake] = []
    pools_known = list(dict.fromkeys(known))
    for word in words:
        key, equals, text = word.partition("=")
        value = _value(text)
        if not equals:
            mistakes.append(Mistake("chaos.no-value", key, "a word without =", "KEY=VALUE", f"write {key}=…"))
        elif key in changes:
            mistakes.append(Mistake("key.twice", key, shown(value), "each key once", "remove one of the two"))
        elif (mistake := _mistake(key, value, pools_known)) is not None:
            mistakes.append(mistake)
        else:
            changes[key] = value
    if mistakes:
        raise ConfigError("chaos set changes nothing", mistakes)
    return changes


def flat(limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with one key `capacity.<pool>` for each pool, as `set` names them."""
    single = {key: value for key, value in limits.items() if key != "capacity"}
    return single | {CAPACITY + pool: count for pool, count in limits["capacity"].items()}


def _mistake(key: str, value: Any, known: list[str]) -> Mistake | None:
    section, _, pool = key.partition(".")
    if key == "capacity" or (section == "capacity" and pool not in known):
        names = [CAPACITY + name for name in known]
        meant = near(pool, known) if pool else None
        advice = f"did you mean {CAPACITY}{meant}?" if meant else ""
        return Mistake("local.pool-unknown", key, "no pool of this cluster", ", ".join(names), advice)
    if key not in KEYS and section != "capacity":
        return unknown_key((key,), [name if name != "capacity" else "capacity.<pool>" for name in KEYS])[0]
    if value is None:
        return None
    try:
        LocalConfig.model_validate({"capacity": {pool: value}} if pool else {key: value})
    except ValidationError as error:
        mistake = from_pydantic(error.errors(include_url=False)[0], (), LocalConfig)[0]
        return replace(mistake, path=key)
    return None


def _value(text: str) -> Any:
    """Return the value as the stack file would read it: a number, a word, or `None`."""
    if text.strip() in ("", "null"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _stack_file(config: StackConfig) -> dict[str, Any]:
    configured: dict[str, Any] = to_json(local_cloud(config.cluster.local))
    return configured


def _pools(stack: Stack, config: StackConfig) -> list[str]:
    """Return the pools of the running cluster, which may differ from the stack file's."""
    settings = published_settings.settings(StackUp.of(stack, config))
    return pools((p.label, p.zones) for p in settings.design.partitions) if settings else []


def _pool_keys(limits: Mapping[str, Any]) -> list[str]:
    return [key for key in limits if key.startswith(CAPACITY)]


def _meaning(key: str) -> str:
    return LocalConfig.model_fields[key.partition(".")[0]].description or ""


def _difference(before: Mapping[str, Any], after: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Return what changed for these keys. Keys without a change are named only if they were asked for."""
    asked = isinstance(keys, Mapping)
    texts = []
    for key in keys:
        old, new = before.get(key), after.get(key)
        if old != new:
            texts.append(f"{key} is {_in_words(new)} (was {_in_words(old)})")
        elif asked:
            texts.append(f"{key} is {_in_words(new)}, as it was")
    return "; ".join(texts)


def _in_words(value: Any) -> str:
    """Return a setting's value as text for the user."""
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _call(stack: Stack, config: StackConfig, method: str, **params: Any) -> Any:
    """Call the stack's local cloud.

    Raises:
        UserError: The stack has no local cloud (exit 3 for a stack in a real cloud), or the cloud refuses.
    """
    provider = config.cluster.provider
    if provider != "local":
        raise UserError(
            f"stack {stack.name} runs on {provider}, where nothing is made to go wrong: `chaos` acts on the "
            "local cloud, on stacks with provider: local",
            EXIT_REFUSED,
            code="chaos.not-local",
        )
    run = RunDirectory.of(stack)
    try:
        return run.call(method, CALL_SECONDS, **params)
    except rpc.RpcUnavailableError as error:
        if not (run.cloud / "machines.json").exists():
            raise NotUpError(clusters.why_gone(stack, run), code="cluster.not-up") from None
        raise UserError(
            f"the local cloud of stack {stack.name} does not answer ({error}): "
            f"`./cluster up --stack {stack.name}` starts it again",
            code="chaos.no-answer",
        ) from None
    except rpc.RpcError as error:
        raise UserError(
            f"the local cloud of stack {stack.name} refuses: {error}", code="chaos.refused"
        ) from None
