"""Options of slurm.conf that a stack file may not give: one mistake each; and those that it may."""

from __future__ import annotations

import itertools
import platform
import textwrap
from dataclasses import replace
from typing import Any

import pytest

from infra.config import StackConfig, parse, slurm_options, slurm_release
from infra.config.slurm_options import OWNED, PARTITION_OWNED, WORDS
from infra.design import design
from infra.instance_types.catalog import catalog
from infra.slurm_releases import options
from node.design.containers import Containers
from node.design.model import Settings, Site
from node.slurm import conf, own_settings, version
from tests.support.stack_parts import Refused, check_refusal, check_sentences, each_refusal, pyxis
from tests.support.stack_values import mistakes, values
from tools import slurm_conf_options

BAKED = {"slurm.source": "debian-13", "image.bake": True}
"""A stack with 24.11; the stacks of the tests have 23.11 otherwise."""
OF_ALL, OF_PART = "slurm.settings", "partitions[0].settings"


def _rows(place: str, *rows: tuple[dict[str, Any], str, str]) -> list[Refused]:
    return [("aws", {place: given}, f"{place}.{name}", code) for given, name, code in rows]


REFUSED: list[Refused] = [
    *_rows(
        OF_ALL,
        ({"SuspendTime": 300}, "SuspendTime", "settings.owned"),
        ({"suspendtime": 300}, "suspendtime", "settings.owned"),
        ({"PriorityWeightAge": 1000}, "PriorityWeightAge", "settings.owned"),
        ({"PreemptMode": "REQUEUE"}, "PreemptMode", "settings.owned"),
        ({"JobCompPass": "secret"}, "JobCompPass", "settings.owned"),
        ({"NodeName": "a CPUs=1"}, "NodeName", "settings.owned"),
        ({"DefMemPerCPU": 1000}, "DefMemPerCPU", "settings.owned"),
        ({"MaxAraySize": 1}, "MaxAraySize", "settings.unknown"),
        ({"Frobnicate": 1}, "Frobnicate", "settings.unknown"),
        ({"Include": "/etc/more.conf"}, "Include", "settings.unknown"),
        ({"PriorityTier": 10}, "PriorityTier", "settings.unknown"),
        ({"MaxTime": "1:00:00"}, "MaxTime", "settings.unknown"),
        ({"MetricsAuthUsers": "ada"}, "MetricsAuthUsers", "settings.release"),
        ({"ExtSensorsFreq": 1}, "ExtSensorsFreq", "settings.release"),
        ({"KillWait": 30, "killwait": 60}, "killwait", "settings.twice"),
        ({"KillWait": 65536}, "KillWait", "settings.number"),
        ({"KillWait": -1}, "KillWait", "settings.number"),
        ({"KillWait": 1.5}, "KillWait", "settings.number"),
        ({"KillWait": float("inf")}, "KillWait", "settings.number"),
        ({"KillWait": "9" * 5000}, "KillWait", "settings.number"),
        ({"UsePAM": "perhaps"}, "UsePAM", "settings.boolean"),
        ({"PreemptExemptTime": 86400}, "PreemptExemptTime", "settings.time"),
        ({"SchedulerParameters": "defer,bf_interval=30"}, "SchedulerParameters", "settings.word"),
        ({"SlurmctldParameters": "CLOUD_DNS"}, "SlurmctldParameters", "settings.word"),
        ({"SelectTypeParameters": "CR_Core"}, "SelectTypeParameters", "settings.word"),
        ({"MailDomain": "a\nSlurmUser=root"}, "MailDomain", "settings.value"),
        ({"MailDomain": 'a" SlurmUser="root'}, "MailDomain", "settings.value"),
        ({"MailDomain": "a#b"}, "MailDomain", "settings.value"),
        ({"MailDomain": "a\\"}, "MailDomain", "settings.value"),
        ({"MailDomain": ""}, "MailDomain", "settings.value"),
        ({"MailDomain": ["a"]}, "MailDomain", "value.type"),
    ),
    *_rows(
        OF_PART,
        ({"MaxTime": "1:00:00"}, "MaxTime", "settings.owned"),
        ({"State": "DOWN"}, "State", "settings.owned"),
        ({"AllowAccounts": "ml"}, "AllowAccounts", "settings.owned"),
        ({"DefaultTim": "1:00:00"}, "DefaultTim", "settings.unknown"),
        ({"KillWait": 30}, "KillWait", "settings.unknown"),
        ({"SuspendProgram": "/bin/true"}, "SuspendProgram", "settings.unknown"),
        ({"Topology": "a"}, "Topology", "settings.owned"),
        ({"ExclusiveTopo": "yes"}, "ExclusiveTopo", "settings.release"),
        ({"DefaultTime": 86400}, "DefaultTime", "settings.time"),
        ({"LLN": "sometimes"}, "LLN", "settings.boolean"),
    ),
    (
        "aws",
        {"containers": pyxis("s3://b/e.deb"), "slurm.accept_unmaintained": "2026-11-26"}
        | {OF_ALL: {"PlugStackConfig": "/apps/plugstack.conf"}},
        f"{OF_ALL}.PlugStackConfig",
        "settings.plugstack",
    ),
    ("aws", {**BAKED, OF_ALL: {"PowerPlugin": "power/none"}}, f"{OF_ALL}.PowerPlugin", "settings.release"),
    ("local", {OF_ALL: {"SuspendTime": 1}}, f"{OF_ALL}.SuspendTime", "settings.owned"),
    ("gcp", {OF_ALL: {"TreeWidth": 16}}, f"{OF_ALL}.TreeWidth", "settings.owned"),
]

ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("aws", {OF_ALL: {"MaxArraySize": 100001.0, "KillWait": "UNLIMITED", "UsePAM": True, "JobRequeue": 0}}),
    ("aws", {OF_ALL: {"SchedulerParameters": "bf_max_job_test=500,defer", "PrivateData": "jobs,usage"}}),
    ("aws", {OF_ALL: {"InteractiveStepOptions": "--interactive --preserve-env --pty $SHELL"}}),
    ("aws", {OF_ALL: {"killwait": 30}, OF_PART: {"LLN": True, "DefaultTime": "1:00:00", "PriorityTier": 5}}),
    ("aws", {OF_ALL: {"PriorityWeightTRES": "gres/gpu=1000"}, OF_PART: {"TRESBillingWeights": "cpu=1.0"}}),
    ("aws", {OF_ALL: {"PlugStackConfig": "/apps/plugstack.conf"}}),
    # Nobody knows the release, so an option of any will do.
    ("aws", {OF_ALL: {"MetricsAuthUsers": "ada", "PowerPlugin": "power/none"}, "slurm.packages": []}),
    ("aws", {**BAKED, OF_ALL: {"TrackWCKey": "yes"}, OF_PART: {"ExclusiveTopo": "yes"}}),
]
MAY_REPLACE = {
    "BatchStartTimeout", "EnforcePartLimits", "JobRequeue", "MailProg", "MaxArraySize", "MaxJobCount",
    "MessageTimeout", "MetricsType", "MpiDefault", "PropagateResourceLimitsExcept",
}  # fmt: skip
"""Options of ours that are only defaults."""
FREE_WORDS = {"power", "alloc", "cloud"}
"""Words of ours that a stack file may repeat."""


SOURCE = """
    s_p_options_t slurm_conf_options[] = {
        {"KillWait", S_P_UINT16},
        {"DefMemPerGPU" , S_P_UINT64},
        {"GetEnvTimeout", S_P_UINT16, _defunct_option},
        {"NodeName", S_P_ARRAY, _parse_nodename,
         _destroy_nodename},

        {NULL}
    };
        static s_p_options_t _partition_options[] = {
            { "Exclusive", S_P_STRING }, /* NO, NODE */
            {NULL}
        };
    """
"""How the parser's source has its tables."""


def config(given: dict[str, Any]) -> StackConfig:
    return parse(given, "test")


@each_refusal(REFUSED)
def test_each_mistake_is_found_alone(stack: str, changes: dict[str, Any], path: str, code: str) -> None:
    check_refusal(stack, changes, path, code)


def test_the_sentences(pytestconfig: pytest.Config) -> None:
    check_sentences(pytestconfig, __file__, REFUSED)


@pytest.mark.parametrize(("stack", "changes"), ACCEPTED)
def test_what_may_be_given(stack: str, changes: dict[str, Any]) -> None:
    if changes.get("slurm.packages") == []:
        changes = {**changes, "slurm.packages": pyxis("s3://bucket/slurmd.deb")["packages"]}
    assert mistakes(values(stack, changes)) == []


@pytest.mark.parametrize("release", options.releases())
def test_each_option_of_a_release_is_owned_or_accepted_and_no_other_is(release: str) -> None:
    for section, owned in ((options.SLURM, OWNED), (options.PARTITION, PARTITION_OWNED)):
        for option in options.options(section).values():
            assert option.type_in(release) != options.LINES or option.name in owned, option.name
        assert {name.lower() for name in owned} <= options.options(section).keys()
    assert options.options(options.SLURM)["maxarraysize"].usable_in(release)
    assert options.options(options.PARTITION)["prioritytier"].usable_in(release)


def test_the_table_has_every_release_that_the_project_supports() -> None:
    supported = [version.spell(release) for release in version.RELEASES if release >= min(version.TRAITS)]
    assert [*options.releases()] == supported, "tools/slurm_conf_options.py makes it anew"


def test_a_release_newer_than_the_table_has_what_the_last_one_has() -> None:
    option = options.options(options.SLURM)["frontendname"]
    assert [option.usable_in(release) for release in ("22.05", "24.11", "25.05", "27.05")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert option.gone_since("26.05") == "25.05"
    assert option.gone_since("24.11") is None


def test_what_slurm_conf_says_is_owned_a_list_or_a_default() -> None:
    every: dict[str, set[str]] = {}
    for isolation, accounting, release in itertools.product(
        ("process", "container", "vm"), (False, True), ((22, 5), (24, 11), (26, 5))
    ):
        made = design(config(values("local", {})), catalog())
        made = replace(
            made,
            isolation=isolation,
            slurm=replace(made.slurm, accounting=accounting),
            containers=None if isolation == "process" else Containers("oci"),
        )
        site = Site("/run/x", "slurm", "head", "10.0.0.1", 6817, 6818)
        text = conf.render(Settings(made, site), release)["slurm.conf"]
        for line in text.split("\n"):
            key, equals, value = line.partition("=")
            if equals and not key.startswith("#"):
                every.setdefault(key, set()).update(own_settings.words(value))
            if key == "PartitionName":
                ours = {word.partition("=")[0] for word in line.split()} - {"PartitionName", "DefMemPerCPU"}
                assert ours <= PARTITION_OWNED.keys()
    assert every.keys() - OWNED.keys() - own_settings.LISTS <= MAY_REPLACE
    for key in every.keys() & own_settings.LISTS - {"AccountingStorageTRES"}:
        ours = {own_settings.word_name(word) for word in every[key]} - FREE_WORDS
        assert ours <= {own_settings.word_name(word) for word in WORDS.get(key, {})}, key


def test_the_design_has_slurms_own_spelling() -> None:
    given = {"killwait": "infinite", "USEPAM": "True", "MailDomain": "Example.com"}
    expected = {"KillWait": "UNLIMITED", "UsePAM": "YES", "MailDomain": "Example.com"}
    assert slurm_options.canonical(given, options.SLURM) == expected
    levels = [slurm_options.canonical({"slurmctlddebug": v}, options.SLURM) for v in ("6", "Debug2", "12")]
    assert levels == [{"SlurmctldDebug": v} for v in ("debug2", "debug2", "12")]
    changes = {OF_ALL: {"maxarraysize": 5.0}, OF_PART: {"lln": True}}
    made = design(config(values("local", changes)), catalog())
    assert made.slurm.settings == {"MaxArraySize": "5"}
    assert [p.settings for p in made.partitions][:1] == [{"LLN": "YES"}]


@pytest.mark.parametrize(
    ("stack", "changes", "release"),
    [
        ("aws", {}, "23.11"),
        ("aws", BAKED, "24.11"),
        ("gcp", {}, "23.11"),
        ("local", {"local": {"isolation": "container", "suite": "forky"}}, "26.05"),
        ("local", {"local": {"isolation": "container", "suite": "sid"}}, None),
        ("local", {"local": {"isolation": "container"}, "slurm.source": "debian-13"}, "24.11"),
    ],
)
def test_the_release_that_a_stack_gets(stack: str, changes: dict[str, Any], release: str | None) -> None:
    given = config(values(stack, changes))
    assert slurm_release.chosen(given.cluster, given.catalog(catalog())) == release


def test_a_process_stack_gets_the_release_of_this_machines_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    given = config(values("local", {}))
    for suite, release in (("bookworm", "22.05"), ("trixie", "24.11"), ("rolling", None)):
        monkeypatch.setattr(platform, "freedesktop_os_release", lambda s=suite: {"VERSION_CODENAME": s})
        assert slurm_release.chosen(given.cluster, given.catalog(catalog())) == release


def test_the_tool_reads_the_parsers_table() -> None:
    source = textwrap.dedent(SOURCE)
    table = slurm_conf_options.options(source, "slurm_conf_options")
    assert table == {
        "KillWait": "uint16", "DefMemPerGPU": "uint64", "GetEnvTimeout": "defunct", "NodeName": "array",
    }  # fmt: skip
    assert slurm_conf_options.options(source, "_partition_options") == {"Exclusive": "string"}
    assert slurm_conf_options.rows({"22.05": table, "23.02": {"KillWait": "uint16"}})["NodeName"] == {
        "22.05": "array",
        "23.02": None,
    }
    with pytest.raises(ValueError, match="no table"):
        slurm_conf_options.options(source, "other")
