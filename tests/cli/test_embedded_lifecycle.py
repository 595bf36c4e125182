"""The embedded runner treats commands as the real engine and the pulumi-command provider do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.engine import embedded
from tests.support import sentences
from tests.support.tiny_project import Tiny, make


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    return make(tmp_path, monkeypatch)


def test_up_creates_in_the_order_of_dependencies_and_records_the_outputs(tiny: Tiny) -> None:
    tiny.write("""
        class Part(pulumi.ComponentResource):
            def __init__(self, name):
                super().__init__("slurm-stacks:index:Part", name)
                own = ResourceOptions(parent=self)
                self.first = Command(name + "-first", create="echo one; echo two", opts=own)
                self.second = Command(name + "-second", create=self.first.stdout.apply(
                    lambda text: f"echo {text.splitlines()[1]}-and-more"), opts=own)
                self.register_outputs({})
        part = Part("part")
        pulumi.export("text", part.second.stdout)
        pulumi.export("object", {"list": [1, 2.5, True, None], "nested": {"a": part.first.stdout}})
    """)
    run = tiny.up()
    assert run.outputs == {
        "text": "two-and-more",
        "object": {"list": [1, 2.5, True, None], "nested": {"a": "one\ntwo"}},
    }
    assert run.counts == {"created": 4}
    assert embedded.outputs(tiny.stack) == run.outputs
    records = tiny.records
    assert records["part"]["type"] == "slurm-stacks:index:Part"
    assert records["part-first"]["parent"] == records["part"]["urn"]
    assert records["part-second"]["dependencies"] == [records["part-first"]["urn"]]
    assert records["part-first"]["urn"] == (
        "urn:pulumi:t::tiny::slurm-stacks:index:Part$command:local:Command::part-first"
    )
    assert records["tiny-t"]["urn"] == "urn:pulumi:t::tiny::pulumi:pulumi:Stack::tiny-t"


def test_a_second_up_runs_nothing(tiny: Tiny) -> None:
    tiny.write("""
        a = command("a")
        command("b", environment={"A": a.stdout}, triggers=[1, {"x": [True]}], opts={"depends_on": [a]})
        pulumi.export("a", a.stdout)
    """)
    first = tiny.up()
    assert tiny.words == ["a+", "b+"]
    second = tiny.up()
    assert tiny.words == []
    assert second.counts == {"unchanged": 3}
    assert not second.summary.changed
    assert second.outputs == first.outputs


@pytest.mark.parametrize("key", ["environment", "stdin", "delete"])
def test_a_changed_input_runs_update_or_else_create(tiny: Tiny, key: str) -> None:
    program = f"""
        value = config.require("value")
        changed = {{"environment": {{"V": value}}, "stdin": value, "delete": f"true {{value}}"}}["{key}"]
        command("with", create=say("with+"), update=say("with~"), **{{"{key}": changed}})
        command("without", **{{"{key}": changed}})
    """
    tiny.write(program, "config: {value: '1'}")
    tiny.up()
    assert sorted(tiny.words) == ["with+", "without+"]
    tiny.write(program, "config: {value: '2'}")
    run = tiny.up()
    assert run.operations == {"with": "updated", "without": "updated"}
    assert sorted(tiny.words) == ["without+", "with~"]


def test_changed_triggers_replace_and_the_new_one_comes_first(tiny: Tiny) -> None:
    program = """
        a = command("a", update=say("a~"), triggers=[config.require("value")])
        command("user", environment={"ID": a.id})
    """
    tiny.write(program, "config: {value: '1'}").up()
    old = tiny.records["a"]["id"]
    assert tiny.words == ["a+", "user+"]
    run = tiny.write(program, "config: {value: '2'}").up()
    # The dependent resource is updated to the new one before the old one is deleted.
    assert tiny.words == ["a+", "user+", "a-"]
    assert run.counts == {"unchanged": 1, "replaced": 1, "updated": 1}
    assert tiny.records["a"]["id"] != old
    assert tiny.up().counts == {"unchanged": 3}


def test_delete_before_replace_takes_those_with_it_that_it_would_replace(tiny: Tiny) -> None:
    program = """
        a = command("a", triggers=[config.require("value")], opts={"delete_before_replace": True})
        command("follows", triggers=[a.id])
        command("notes", environment={"ID": a.id})
    """
    tiny.write(program, "config: {value: '1'}").up()
    assert tiny.words[0] == "a+"
    run = tiny.write(program, "config: {value: '2'}").up()
    words = tiny.words
    assert words[:3] == ["follows-", "a-", "a+"]
    assert sorted(words[3:]) == ["follows+", "notes+"]
    assert run.counts == {"unchanged": 1, "replaced": 2, "updated": 1}


def test_destroy_goes_against_the_dependencies_and_leaves_nothing(tiny: Tiny) -> None:
    tiny.write("""
        a = command("a")
        b = command("b", opts={"depends_on": [a]})
        c = command("c", environment={"B": b.stdout})
        command("child", opts={"parent": c})
    """).up()
    assert tiny.words == ["a+", "b+", "c+", "child+"]
    run = tiny.destroy()
    assert tiny.words == ["child-", "c-", "b-", "a-"]
    assert run.counts == {"deleted": 5}
    assert embedded.outputs(tiny.stack) is None
    assert not tiny.state_file.parent.exists()
    assert not tiny.run_root.exists()
    assert tiny.destroy().counts == {}
    assert tiny.words == []


def test_destroy_needs_neither_the_program_nor_the_stack_file(tiny: Tiny) -> None:
    tiny.write("command('a')").up()
    for path in tiny.path.glob("[!.]*"):
        path.unlink()
    tiny.destroy()
    assert tiny.words == ["a+", "a-"]


def test_what_vanishes_from_the_program_is_deleted_after_the_rest(tiny: Tiny) -> None:
    tiny.write("""
        a = command("a")
        b = command("b", opts={"depends_on": [a]})
        command("c", opts={"depends_on": [b]})
    """).up()
    assert len(tiny.words) == 3
    run = tiny.write("command('d')").up()
    assert tiny.words == ["d+", "c-", "b-", "a-"]
    assert run.counts == {"unchanged": 1, "created": 1, "deleted": 3}
    assert set(tiny.records) == {"tiny-t", "d"}


def test_deleted_with_spares_the_command_only_if_the_other_goes_too(tiny: Tiny) -> None:
    program = """
        host = command("host")
        if config.get_bool("job"):
            command("job", opts={"deleted_with": host})
    """
    tiny.write(program, "config: {job: true}").up()
    tiny.write(program).up()
    assert tiny.words == ["host+", "job+", "job-"]
    tiny.write(program, "config: {job: true}").up()
    tiny.destroy()
    assert tiny.words == ["job+", "host-"]


def test_a_command_gets_its_environment_and_input_in_the_projects_folder(tiny: Tiny) -> None:
    run = tiny.write("""
        a = Command("a", create="pwd; cat; echo $WORD; echo err >&2", stdin="some\\ninput\\n",
                    environment={"WORD": "here"})
        b = Command("b", create="cat")
        pulumi.export("texts", [a.stdout, a.stderr, b.stdout])
    """).up()
    assert run.outputs == {"texts": [f"{tiny.path}\nsome\ninput\nhere", "err", ""]}
    assert sorted(run.lines) == sorted([str(tiny.path), "some", "input", "here", "err"])


@pytest.mark.parametrize(
    ("one", "two"), [("1", "'1'"), ("1", "True"), ("[1]", "[1, 2]"), ("{'a': 1}", "{'a': 1, 'b': 2}")]
)
def test_triggers_of_another_type_or_length_are_a_change(tiny: Tiny, one: str, two: str) -> None:
    tiny.write(f"command('a', triggers=[{one}])").up()
    assert tiny.up().operations == {"a": "unchanged"}
    assert tiny.write(f"command('a', triggers=[{two}])").up().operations == {"a": "replaced"}


def test_independent_commands_run_at_the_same_time(tiny: Tiny) -> None:
    # Each command waits for a file that the other one makes, so they must run in parallel.
    tiny.write("""
        for one, two in (("a", "b"), ("b", "a")):
            Command(one, create=f"touch '{LOG}.{one}'; while ! [ -e '{LOG}.{two}' ]; do sleep 0.01; done",
                    delete=f"rm '{LOG}.{one}'; while [ -e '{LOG}.{two}' ]; do sleep 0.01; done")
    """)
    assert tiny.up().counts == {"created": 3}
    assert tiny.destroy().counts == {"deleted": 3}


def test_preview_tells_and_does_nothing(tiny: Tiny) -> None:
    program = """
        a = command("a", environment={"V": config.require("value")})
        b = command("b", triggers=[config.require("value")], opts={"depends_on": [a]})
        if config.require("value") == "1":
            command("c")
        assert pulumi.runtime.is_dry_run()
        pulumi.export("x", b.stdout)
    """
    assert tiny.write(program, "config: {value: '1'}").preview().counts == {"created": 4}
    assert tiny.words == []
    assert not tiny.state_file.exists()
    tiny.write(program.replace("assert", "# "), "config: {value: '1'}").up()
    before = tiny.state_file.read_bytes()
    assert len(tiny.words) == 3
    run = tiny.write(program, "config: {value: '2'}").preview()
    assert run.operations == {"a": "updated", "b": "replaced", "c": "deleted"}
    assert tiny.words == []
    assert tiny.state_file.read_bytes() == before


def test_the_async_entrypoint_of_the_sdk_works(tiny: Tiny) -> None:
    run = tiny.write("""
        import asyncio
        async def main():
            await asyncio.sleep(0)
            return {"late": command("a", create="echo late").stdout}
        pulumi.run(main)
    """).up()
    assert run.outputs == {"late": "late"}


def test_a_run_leaves_the_process_as_it_was(tiny: Tiny) -> None:
    import sys

    import pulumi

    before = Path.cwd(), list(sys.path), pulumi.get_project(), pulumi.runtime.get_root_resource()
    tiny.write("command('a')").up()
    after = Path.cwd(), list(sys.path), pulumi.get_project(), pulumi.runtime.get_root_resource()
    assert after == before


def test_stack_references_read_what_another_stack_recorded(tiny: Tiny) -> None:
    tiny.write("""
        pulumi.export("cluster", {"name": command("a", create="echo c1").stdout})
    """).up()
    other = Tiny(tiny.path.parent / "consumer", tiny.run_root, name="consumer")
    other.path.mkdir()
    program = """
        producer = pulumi.StackReference("organization/tiny/{stack}")
        pulumi.export("seen", producer.require_output("cluster").apply(lambda cluster: cluster["name"]))
    """
    assert other.write(program.format(stack="t")).up().outputs == {"seen": "c1"}
    with sentences.raises("reference.stack"):
        other.write(program.format(stack="u")).up()


def test_the_state_is_readable_by_its_owner_alone(tiny: Tiny) -> None:
    tiny.write("command('a')").up()
    assert tiny.state_file.stat().st_mode & 0o777 == 0o600
    assert tiny.state_file.parent.stat().st_mode & 0o777 == 0o700
    assert json.loads(tiny.state_file.read_text())["version"] == 1
