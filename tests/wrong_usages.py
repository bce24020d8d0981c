"""Wrong input of every kind, and how the command has to end: the table that `tests/wrong_usage.py` tries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.places import DESK_MODEL

QUICK = "{root}/data/configs/quickstart.yaml"
UNREACHABLE = "http://me:s3cret@127.0.0.1:9"
"""Nothing listens there."""
_TINY = (DESK_MODEL / "config.json").read_text(encoding="utf-8")
_TOKENIZER = {name: (DESK_MODEL / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")}


@dataclass(frozen=True, kw_only=True)
class Usage:
    """One call of the command; `{folder}` is a folder of its own, `{root}` the project."""

    group: str
    name: str
    arguments: tuple[str, ...]
    code: int
    messages: tuple[str, ...]
    never: tuple[str, ...] = ("s3cret",)
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | bytes] = field(default_factory=dict)


USAGES: list[Usage] = []


def _case(group: str, name: str, arguments: str, code: int, *messages: str, **others: object) -> None:
    """One row; arguments are split at blanks, `␣` stands for a blank in one of them."""
    words = tuple(word.replace("␣", " ") for word in arguments.split())
    USAGES.append(Usage(group=group, name=f"{group}: {name}", arguments=words, code=code, messages=messages, **others))  # type: ignore[arg-type]


def _set(group: str, setting: str, *messages: str, code: int = 2, **others: object) -> None:
    """A run of the quickstart with one setting changed; it has to end before anything starts."""
    _case(group, setting.replace("␣", " ")[:60], f"train {QUICK} --set {setting}", code, *messages, **others)


def _dry(group: str, name: str, settings: str, *messages: str, code: int = 2, **others: object) -> None:
    """A dry run of the quickstart with settings that only a look at files can refuse."""
    options = " ".join(f"--set {setting}" for setting in settings.split())
    _case(group, name, f"train {QUICK} --dry-run {options}", code, *messages, **others)


def _yaml(name: str, content: str | bytes, *messages: str) -> None:
    _case("config file", name, "train {folder}/c.yaml --dry-run", 2, *messages, files={"c.yaml": content})


# commands and options
_case("command line", "unknown command", "trian x.yaml", 2, "No such command 'trian'")
_case("command line", "unknown option", f"train {QUICK} --quickly", 2, "No such option")
_case("command line", "no config", "train", 2, "Missing argument")
_case("command line", "two configs", f"train {QUICK} {QUICK}", 2, "unexpected extra argument")
_case("command line", "option without value", f"train {QUICK} --set", 2, "requires an argument")
_case("command line", "not a number", f"evaluate {QUICK} --num-episodes many", 2, "--num-episodes")
_case("command line", "a number out of range", f"evaluate {QUICK} --num-episodes 0", 2, "--num-episodes")
_case("command line", "markup in an option", f"train {QUICK} --[/x]", 2, "--[/x]")
_case("command line", "markup in a command", "[/x]", 2, "'[/x]'")
_case("command line", "no reason", "promote models:/desk@candidate", 2, "Missing option '--reason'")
_case("command line", "empty reason", "promote models:/desk@candidate --reason ␣", 2, "it has 0 characters")
_case("command line", "slots below one", "deploy --gpu-slots 0", 2, "--gpu-slots")
_case(
    "command line",
    "modes that exclude each other",
    f"evaluate {QUICK} --message hi",
    2,
    "--message can be used only in a chat",
)
_case("command line", "neither config nor checkpoint", "evaluate", 2, "Name a CONFIG")
_case("command line", "message and input", "evaluate --checkpoint x --message a --input b", 2, "exclude each other")
_case("command line", "help of no command", "trian --help", 2, "No such command")

# the file of the config
_case("config file", "missing", "train nowhere.yaml", 2, "no config at nowhere.yaml", "grpo init")
_case("config file", "a folder", "train {folder}", 2, "cannot be read", "Name a YAML file")
_case("config file", "markup in its name", "train [/x]/[red].yaml", 2, "no config at [/x]/[red].yaml")
_case("config file", "a name of 300 letters", "train " + "x" * 300, 2, "cannot be read")
_case("config file", "a name that is an escape code", "train \x1b[2Jx.yaml", 2, "\\x1b[2Jx.yaml", never=("\x1b",))
_yaml("empty", "", "holds NoneType")
_yaml("a list", "[1, 2]", "holds list")
_yaml("not YAML", "a: [", "line 1", "cannot be read as YAML")
_yaml("a Python object", "!!python/object/apply:os.system ['true']", "cannot be read as YAML")
_yaml("not UTF-8", b"name: caf\xe9\n", "is not UTF-8")
_yaml("UTF-16", "name: x\n".encode("utf-16"), "is not UTF-8")
_yaml("a NUL byte", "name: \x00", "unacceptable character")
_yaml(
    "aliases that are a billion values",
    "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)),
    "more than 20,000 values",
)
_yaml(
    "merges that are a billion keys",
    "b0: &b0 {k: 1}\n" + "".join(f"b{i}: &b{i}\n  <<: [{','.join([f'*b{i - 1}'] * 10)}]\n" for i in range(1, 10)),
    "more than 20,000 values",
)
_yaml("an alias in itself", "name: &a [*a]", "an alias inside of the value that it repeats")
_yaml("lists in lists", "name: " + "[" * 5000, "more than 50 levels")
_yaml("too large", "#" * (1 << 20) + "\nname: x", "bytes, but at most 1,048,576 are read")
_yaml("too many values", "name: [" + "1," * 100_000 + "]", "more than 20,000 values")
_yaml("a key twice", "name: a\nname: b", "'name' is given twice")
_yaml("a month 13", "name: 2026-13-01", "month must be in 1..12")
_yaml("an integer of 5,000 digits", "seed: " + "9" * 5000, "cannot be read as YAML")
_yaml("extends a file elsewhere", "extends: ../other.yaml", "Name another file in the same folder")
_yaml("extends itself", "extends: c.yaml", "Only one level is allowed")
_yaml("extends nothing", "extends: none.yaml", "no config at")

# settings
_case("setting", "no value", f"train {QUICK} --set nonsense", 2, "not of the form section.key=value")
_set("setting", "=3", "not of the form section.key=value")
_set("setting", "seed=[", "cannot be read as YAML")
_set("setting", "trainning.iterations=3", "trainning: Extra inputs are not permitted")
_set("setting", "training.iterations=many", "training.iterations: Input should be a valid integer")
_set("setting", "training.iterations=0", "greater than or equal to 1")
_set("setting", "rollout.group_size=1", "rollout.group_size")
_set("setting", "environment.kind=moon", "'moon'", never=("Field required",))
_set("setting", "scenarios.sources.0.kind=xml", "'xml'", never=("at least 1 item",))
_set(
    "setting",
    "scenarios.sources=[{kind:␣jsonl}]",
    "scenarios.sources.0.path: Field required",
    never=("at least 1 item",),
)
_set("setting", "scenarios.sources=[]", "at least 1 item")
_set("setting", "scenarios.sources.7.kind=csv", "does not fit the config")
_set("setting", "reward=[]", "reward: Tuple should have at least 1 item")
_set("setting", "reward.0.kind=kindness", "reward kindness is unknown")
_set("setting", "reward.0.kind='[/x]'", "reward [/x] is unknown")
_set("setting", "reward.0.weight=2", "reward.0.weight")
_set("setting", "rollout.staleness=1", "Set training.importance_sampling_cap")
_set("setting", "training.clip_lw=1", "training.clip_lw")
_set("setting", "training.algorithm=magic", "training.algorithm")
_set("setting", "training.lora.target_modules=[a,3]", "training.lora.target_modules.1", never=("all-linear",))
_set("setting", "gates=[{kind:␣must_pass,scenarios:␣nowhere.txt}]", "no file of scenario ids at nowhere.txt")
_set("setting", "store=s3://me:s3cret@bucket/x", "holds a password")
_set("setting", "compute={gpu_stages:␣{deployment:␣x}}", "compute.gpu_stages.deployment")
_set("setting", "policy.quantization=int3", "policy.quantization")
for name, setting in (
    ("infinite learning rate", "training.learning_rate=.inf"),
    ("learning rate that is not a number", "training.learning_rate=.nan"),
    ("infinite temperature", "rollout.temperature=.inf"),
    ("infinite margin of a gate", "gates=[{kind:␣improvement,margin:␣-.inf}]"),
    ("infinite KL bound", "gates=[{kind:␣kl,max_nats:␣.inf}]"),
    ("infinite timeout", "rollout.stage_timeout_s=.inf"),
    ("infinite weight of a reward", "reward.0.weight=.nan"),
    ("infinite floor of a reward", "reward.0.floor=-.inf"),
):
    _case("infinity", name, f"train {QUICK} --set {setting}", 2, "Input should be a finite number")
_set("infinity", "reward.0.options={target:␣[1,␣.inf]}", "options.target.1 is inf. Write a finite number")
_case(
    "infinity",
    "infinite range of a search",
    "tune {root}/data/configs/tune.yaml --set search_space={rollout.temperature:␣{type:␣uniform,low:␣1,high:␣.inf}}",
    2,
    "search_space.rollout.temperature.high",
    never=("literal", "customer_service"),
)
_case(
    "setting",
    "a search without its end",
    "tune {root}/data/configs/tune.yaml --set search_space={rollout.temperature:␣{type:␣uniform,low:␣1}}",
    2,
    "search_space.rollout.temperature.high: Field required",
    never=("customer_service",),
)
_case(
    "setting",
    "a retraining for no reason",
    "retrain {root}/data/configs/retrain.yaml --set triggers=[{kind:␣boredom}]",
    2,
    "'boredom'",
    never=("at least 1 item",),
)
_case(
    "setting",
    "storage that is not an address",
    "tune {root}/data/configs/tune.yaml --storage nonsense",
    2,
    "storage is not a URL",
)
_case(
    "setting",
    "storage with its password",
    "tune {root}/data/configs/tune.yaml --storage postgresql://a:s3cret@h/d",
    2,
    "holds a password",
)

# sources, models and templates, which the dry run looks at
_dry("source", "missing file", "scenarios.sources.0.path=nowhere.jsonl", "nowhere.jsonl", code=1)
_dry("source", "markup in its name", "scenarios.sources.0.path='[/x].jsonl'", "[/x].jsonl", code=1)
_dry(
    "source",
    "a module that is not there",
    "scenarios.sources=[{kind:␣python,object:␣'nowhere:records'}]",
    "module 'nowhere' was not found",
    code=2,
)
_dry(
    "source",
    "a folder that is not there",
    "scenarios.sources=[{kind:␣tau2_bench,path:␣nowhere}]",
    "nowhere",
    code=1,
)
_dry(
    "model",
    "a name on a hub",
    "policy.model=Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-0.6B is not in the cache",
    "HF_HUB_OFFLINE is set",
    code=1,
    environment={"HF_HUB_OFFLINE": "1"},
)
_dry(
    "model",
    "GGUF",
    "policy.model={folder}/m.gguf",
    "m.gguf cannot be read as GGUF",
    "was converted from",
    code=1,
    files={"m.gguf": b"GGUF\x03"},
    never=("JSON",),
)
_dry(
    "model",
    "a folder with GGUF",
    "policy.model={folder}/m",
    "q4.gguf cannot be read as GGUF",
    code=1,
    files={"m/q4.gguf": b"GGUF\x03"},
)
_dry("model", "missing folder", "policy.model=./no/such/folder", "the folder does not exist", code=1)
_dry("model", "a file", "policy.model={root}/README.md", "it is a file", code=1)
_dry("model", "empty folder", "policy.model={folder}/m", "config.json is missing", code=1, files={"m/x": ""})
_dry("model", "config that is not JSON", "policy.model={folder}/m", "is not JSON", code=1, files={"m/config.json": "{"})
_dry("model", "config that is a list", "policy.model={folder}/m", "holds list", code=1, files={"m/config.json": "[]"})
_dry(
    "model",
    "Pickled weights",
    "policy.model={folder}/m",
    "Pickled weights are refused",
    code=1,
    files={"m/config.json": _TINY, "m/pytorch_model.bin": b"x"},
)
_dry(
    "model",
    "no tokenizer",
    "policy.model={folder}/m",
    "tokenizer",
    code=1,
    files={"m/config.json": _TINY, "m/model.safetensors": b""},
)
_dry(
    "model",
    "unknown architecture",
    "policy.model={folder}/m",
    "moonshine-9",
    code=1,
    files={
        "m/config.json": json.dumps({"model_type": "moonshine-9"}),
        "m/model.safetensors": b"\x02\0\0\0\0\0\0\0{}",
        **{f"m/{k}": v for k, v in _TOKENIZER.items()},
        "m/chat_template.jinja": (DESK_MODEL / "chat_template.jinja").read_bytes(),
    },
)
_dry(
    "model", "the address of a server", "policy.model=openai+https://host/v1#m", "can be evaluated, not trained", code=1
)
_dry("model", "an object without a digest", "policy.model=s3://bucket/m", "is not the address of an artifact", code=2)
_dry("template", "syntax error", "policy.chat_template='{%␣for␣%}'", "chat template", "TemplateSyntaxError", code=1)
_dry("template", "that raises", "policy.chat_template=\"{{␣raise_exception('no')␣}}\"", "chat template", "no", code=1)
_dry("template", "that divides by zero", "policy.chat_template='{{␣1/0␣}}'", "ZeroDivisionError", code=1)
_dry("template", "that has no messages", "policy.chat_template=hello", "prints no message", code=1)
_dry("template", "empty", "policy.chat_template=''", "chat template", code=1)
_dry(
    "template",
    "that does not end",
    "policy.chat_template='{%for␣a␣in␣range(99999)%}{%for␣b␣in␣range(99999)%}{%for␣c␣in␣range(99999)%}{%endfor%}{%endfor%}{%endfor%}'",
    "TimeoutError: not done after 5.01 s",
    code=1,
)
_dry(
    "backend",
    "vllm that is not installed",
    "rollout.backend=vllm training.importance_sampling_cap=2",
    "pip install 'grpo-agent-framework[vllm]'",
    code=1,
)
_dry(
    "backend",
    "servers without their key",
    "rollout.backend=servers rollout.servers=[http://host:8000]",
    "set GRPO_ROLLOUT_KEY to a key of the servers",
    code=1,
)
_dry(
    "backend",
    "weights of few bits without a GPU",
    "policy.quantization=nf4 training.lora={r:␣4}",
    "policy.quantization nf4",
    code=1,
)
_dry("reward", "an option that it lacks", "reward.0.options={wit:␣3}", "does not take options")
_dry(
    "reward",
    "a rubric that is not there",
    "reward=[{kind:␣ruler,weight:␣1,options:␣{model:␣'openai+https://h/v1#m',rubric:␣wit}}]",
    "no rubric 'wit'",
)
_dry(
    "reward",
    "a network that is not there",
    "reward=[{kind:␣safety,weight:␣1,options:␣{model:␣nowhere}}]",
    "nowhere",
    code=2,
)
_dry("gate", "a network that is not there", "gates=[{kind:␣safety,model:␣nowhere}]", "nowhere", code=2)
_dry(
    "environment",
    "a user with an address of no kind",
    "environment={kind:␣simulated_user,model:␣'moon://x'}",
    "moon://",
)
_case("reward", "unknown, to be checked", "check-reward kindness", 2, "reward kindness is unknown")
_case("reward", "a wrong option, to be checked", "check-reward conciseness --set taget=20", 2, "does not take options")
_case("reward", "an option without value, to be checked", "check-reward conciseness --set target", 2, "not of the form")
_case("reward", "one that is exploited", "check-reward conciseness --set target=20", 3, "yes")

# home, ports, databases and servers
_case(
    "home",
    "a file",
    f"train {QUICK}",
    2,
    "is not a folder",
    "GRPO_HOME",
    environment={"GRPO_HOME": "{folder}/f"},
    files={"f": ""},
)
_case(
    "home",
    "a file, asked for a report",
    "report x",
    2,
    "is not a folder",
    environment={"GRPO_HOME": "{folder}/f"},
    files={"f": ""},
)
_case(
    "home",
    "below a file",
    f"train {QUICK} --dry-run",
    2,
    "is not a folder",
    environment={"GRPO_HOME": "{folder}/f/home"},
    files={"f": ""},
)
_case("home", "not writable", f"train {QUICK}", 1, "GRPO_HOME", environment={"GRPO_HOME": "/proc/home"})
_case("home", "with markup in its name", "report nothing", 2, "[/x]", environment={"GRPO_HOME": "{folder}/[/x]"})
_case("store", "not writable", f"train {QUICK} --set store=/proc/store", 1, "Set `store`")
_case("store", "a file", f"train {QUICK} --set store={{folder}}/f", 2, "is not a folder", files={"f": ""})
_case("store", "an address of no kind", f"train {QUICK} --set store=ftpx://host/x", 2, "ftpx://host/x")
for port in ("abc", "0", "70000", "-1", "4200.5", "²"):
    _case(
        "port",
        f"{port} for Prefect",
        f"train {QUICK}",
        2,
        "PREFECT_SERVER_API_PORT",
        "1 to 65535",
        environment={"PREFECT_SERVER_API_PORT": port},
    )
_case("port", "abc for MLflow", "ui", 2, "GRPO_MLFLOW_PORT", environment={"GRPO_MLFLOW_PORT": "abc"})
_case(
    "port",
    "abc in a dry run",
    f"train {QUICK} --dry-run",
    2,
    "PREFECT_SERVER_API_PORT",
    environment={"PREFECT_SERVER_API_PORT": "abc"},
)
_DAMAGED = {"home/mlflow.db": "this is not a database, but more than sixteen bytes of text"}
for command, arguments in (
    ("train", QUICK),
    ("lineage", "models:/desk@champion"),
    ("rollback", "models:/desk@champion --reason x"),
):
    _case(
        "database",
        f"damaged records of MLflow, {command}",
        f"{command} {arguments}",
        1,
        "file is not a database",
        "mlflow.db",
        files=_DAMAGED,
    )
_case(
    "database",
    "damaged records of Prefect",
    f"train {QUICK}",
    1,
    "file is not a database",
    files={"home/prefect/prefect.db": "this is not a database, but more than sixteen bytes of text"},
)
for command, arguments in (
    ("models", ""),
    ("lineage", "models:/desk@champion"),
    ("train", QUICK),
    ("migrate", ""),
    ("rollback", "models:/desk@champion --reason x"),
):
    _case(
        "database",
        f"records of MLflow with 0 bytes, {command}",
        f"{command} {arguments}",
        2,
        "the database of MLflow",
        "mlflow.db, has 0 bytes",
        "Restore a backup",
        files={"home/mlflow.db": ""},
    )
for command, arguments in (("train", QUICK), ("migrate", "")):
    _case(
        "database",
        f"records of Prefect with 0 bytes, {command}",
        f"{command} {arguments}",
        2,
        "the database of Prefect",
        "prefect.db, has 0 bytes",
        files={"home/prefect/prefect.db": ""},
    )
_case(
    "database",
    "a driver that is not there",
    f"train {QUICK}",
    2,
    "MLFLOW_TRACKING_URI",
    environment={"MLFLOW_TRACKING_URI": "oracle://h/d"},
)
_case(
    "database",
    "PostgreSQL that does not answer",
    "lineage models:/desk@champion",
    1,
    "Start the database",
    environment={"MLFLOW_TRACKING_URI": "postgresql://me:s3cret@127.0.0.1:9/d"},
)
for command, arguments in (
    ("train", QUICK),
    ("promote", "models:/desk@candidate --reason x"),
    ("evaluate", QUICK),
    ("deploy", ""),
):
    _case(
        "server",
        f"Prefect does not answer, {command}",
        f"{command} {arguments}",
        1,
        "Prefect's server at http://127.0.0.1:9/api",
        "does not answer",
        "PREFECT_API_URL",
        environment={"PREFECT_API_URL": f"{UNREACHABLE}/api"},
    )
for command, arguments in (("train", QUICK), ("lineage", "models:/desk@champion")):
    _case(
        "server",
        f"MLflow does not answer, {command}",
        f"{command} {arguments}",
        1,
        "MLflow at http://127.0.0.1:9",
        "does not answer",
        "MLFLOW_TRACKING_URI",
        environment={"MLFLOW_TRACKING_URI": UNREACHABLE},
    )
_case(
    "server",
    "Prefect at an invalid address",
    f"train {QUICK}",
    2,
    "PREFECT_API_URL",
    environment={"PREFECT_API_URL": "nonsense"},
)
_case(
    "server",
    "a judge that does not answer",
    "evaluate --checkpoint openai+http://127.0.0.1:9/v1#m --message hi",
    1,
    "http://127.0.0.1:9/v1#m cannot be reached",
)

# models by address, and what is talked to
_case("address", "nonsense", "lineage nonsense", 2, "is not the address of a model")
_case("address", "markup", "lineage models:/[/x]@champion", 2, "[/x]")
_case("address", "a name for a rollback", "rollback desk --reason x", 2, "Write models:/NAME@champion")
_case("address", "a number for a rollback", "rollback models:/desk/3 --reason x", 2, "Write models:/NAME@champion")
_case("address", "a version of 30 digits", "lineage models:/desk/" + "9" * 30, 2, "9999")
_case("address", "a version beyond what databases hold", "lineage models:/desk/99999999999999999999", 2, "9999")
_case(
    "address",
    "a model that is not there",
    "lineage models:/missing@champion",
    2,
    "no model at models:/missing@champion",
)
_case("address", "a store that is not there", "store move {folder}/none {folder}/there", 2, "there is no store at")
_case("address", "nothing to export", "export models:/desk@champion {folder}/out", 2, "no model at models:/desk")
_case("address", "nothing to roll back", "rollback models:/desk@champion --reason x", 2, "no model is registered")
_case("address", "nothing to admit", "admit models:/desk/1 --reason x --yes", 2, "no model is registered")
_case("address", "nothing to serve", "serve models:/desk@champion", 2, "there are no API keys")
_case("address", "a quote in a name", "lineage models:/it's@champion", 2, "it's")
_case(
    "talk", "a folder that is not there", "evaluate --checkpoint nowhere --message hi", 2, "the folder does not exist"
)
_case(
    "talk",
    "a name on a hub",
    "evaluate --checkpoint Qwen/Qwen3-0.6B --message hi",
    2,
    "Qwen/Qwen3-0.6B is not in the cache",
    environment={"HF_HUB_OFFLINE": "1"},
)
_case("talk", "an address of no kind", "evaluate --checkpoint moon://x --message hi", 2, "moon://")
_case(
    "talk",
    "a server without a model",
    "evaluate --checkpoint openai+http://127.0.0.1:9/v1 --message hi",
    2,
    "names no model",
)
_case(
    "talk",
    "a server with a password",
    "evaluate --checkpoint openai+http://a:s3cret@127.0.0.1:9/v1#m --message hi",
    2,
    "password",
)
_case(
    "talk",
    "a script that is a bomb",
    "evaluate --checkpoint stub://{folder}/r.yaml --message hi",
    2,
    "more than 20,000 values",
    files={
        "r.yaml": "- &a [x,x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"- &b{i} [{','.join(['*a' if not i else f'*b{i - 1}'] * 10)}]\n" for i in range(9))
    },
)
_case(
    "talk",
    "an option that it lacks",
    "evaluate --checkpoint {root}/data/models/desk_clerk --message hi --set wit=3",
    2,
    "wit",
)
_case(
    "talk",
    "an infinite temperature",
    "evaluate --checkpoint {root}/data/models/desk_clerk --message hi --set temperature=.inf",
    2,
    "temperature: Input should be a finite number",
)
_case(
    "talk",
    "input that is not JSON",
    "evaluate --checkpoint {root}/data/models/desk_clerk --input {folder}/a.json",
    2,
    "cannot be read as JSON",
    files={"a.json": "{"},
)
_case(
    "talk",
    "input that is not UTF-8",
    "evaluate --checkpoint {root}/data/models/desk_clerk --input {folder}/a.json",
    2,
    "cannot be read as JSON",
    files={"a.json": b'["caf\xe9"]'},
)
_case(
    "talk",
    "scenarios of no format",
    f"evaluate {QUICK} --scenarios-file x.txt --num-episodes 1",
    2,
    "name a file that ends in",
)

# reports, configs to write, ingestion, deployments, doctor
_case("report", "of no run", "report nothing", 2, "no report of run 'nothing'")
_case("report", "markup in its name", "report [/x]", 2, "'[/x]'")
_case("report", "not JSON", "report {folder}/report.json", 1, "cannot be read as a report", files={"report.json": "{"})
_case(
    "report",
    "of another version",
    "report {folder}/report.json",
    1,
    "schema version '0'",
    files={"report.json": '{"schema_version": "0"}'},
)
_case(
    "init",
    "over a file that is there",
    "init {folder}/c.yaml --reference",
    2,
    "exists. Name another",
    files={"c.yaml": "x"},
)
_case("init", "into a folder that is a file", "init {folder}/f/c.yaml --reference", 1, "/f: ", files={"f": ""})
_case("init", "from nothing", "init {folder}/c.yaml --reference --from nowhere.yaml", 2, "no config at nowhere.yaml")
_case(
    "ingest",
    "a missing source",
    f"ingest {QUICK} --folder {{folder}}/i --set scenarios.sources.0.path=nowhere.jsonl",
    1,
    "nowhere.jsonl",
)
_case(
    "ingest",
    "an id that is markup",
    f"ingest {QUICK} --folder {{folder}}/i --set scenarios.sources.0.path={{folder}}/s.jsonl",
    1,
    "[/x]",
    files={"s.jsonl": '{"id": "[/x]", "user_responses": ["a"]}\n' * 2},
)
_case("ingest", "into a file", f"ingest {QUICK} --folder {{folder}}/f", 1, "/f", files={"f": ""})
_case("deploy", "no file", "deploy --deployments nowhere.yaml", 2, "the file nowhere.yaml does not exist")
_case("doctor", "an infinite learning rate", f"doctor {QUICK} --set training.learning_rate=.inf", 2, "finite number")
_case(
    "doctor",
    "a template that fails",
    f"doctor {QUICK} --set policy.chat_template='{{%␣for␣%}}' --json",
    1,
    "TemplateSyntaxError",
)
_case(
    "doctor",
    "a name on a hub",
    f"doctor {QUICK} --set policy.model=Qwen/Qwen3-0.6B --json",
    1,
    "Qwen/Qwen3-0.6B is not in the cache",
    environment={"HF_HUB_OFFLINE": "1"},
)
_case("doctor", "not a port", "doctor --json", 1, "is not a port", environment={"PREFECT_SERVER_API_PORT": "abc"})
_case(
    "doctor",
    "a home that is a file",
    "doctor --json",
    1,
    "is not a folder",
    environment={"GRPO_HOME": "{folder}/f"},
    files={"f": ""},
)
_case("doctor", "a damaged database", "doctor --json", 1, "file is not a database", files=_DAMAGED)
