"""The only file that touches names which Flower does not promise to keep.

It also owns how records are named: a Message-API client reads ``arrays`` and
``config``, a `NumPyClient` reads ``fitins.parameters`` and ``fitins.config``.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import math
import sys
import zipfile
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy, deepcopy
from functools import lru_cache, partial
from importlib.metadata import entry_points
from io import BytesIO
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Any, Literal, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.app.message.message import make_message
from flwr.client import Client as Client
from flwr.client import NumPyClient as NumPyClient
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import MessageTypeLegacy as _MessageTypeLegacy
from flwr.common.constant import SType
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
)
from flwr.common.secure_aggregation.secaggplus_constants import Key as _Key
from flwr.common.secure_aggregation.secaggplus_constants import Stage as _Stage
from flwr.common.serde import (
    config_record_from_proto,
    config_record_to_proto,
    metric_record_from_proto,
    metric_record_to_proto,
)
from flwr.server import History, LegacyContext, Server, SimpleClientManager
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.strategy import Strategy as LegacyStrategy
from flwr.server.workflow import DefaultWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy
from flwr.serverapp.strategy.strategy_utils import (
    aggregate_arrayrecords as aggregate_arrayrecords,
)
from flwr.serverapp.strategy.strategy_utils import (
    aggregate_metricrecords as aggregate_metricrecords,
)
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.serverapp.strategy.strategy_utils import (
    validate_message_reply_consistency as validate_message_reply_consistency,
)
from flwr.supercore.run import Run as Run
from flwr.supercore.run import RunNotRunningException as RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity as TaskIdentity
from numpy.lib import format as npy

from flwr_fbo._common.errors import RefusedError

ClientApi = Literal["both", "message", "numpy", "action"]

# The action of `add_tuning`; a client app's own ``train`` is left alone.
TUNE_ACTION = "tune"

CLIENT_APP_RAISED = 2  # flwr.common.constant.ErrorCode.CLIENT_APP_RAISED_EXCEPTION
MOD_REFUSED = 6  # flwr.common.constant.ErrorCode.MOD_FAILED_PRECONDITION
# Of Flower's SecAgg and SecAgg+: their record in a message and in its reply, that in a
# client's state, and what the record of a reply has.
SECURE_AGGREGATION_RECORD = RECORD_KEY_CONFIGS
SECURE_AGGREGATION_STATE = RECORD_KEY_STATE
SecureAggregationStage = _Stage
SECURE_AGGREGATION_KEYS = (
    _Key.PUBLIC_KEY_1,
    _Key.PUBLIC_KEY_2,
    _Key.DESTINATION_LIST,
    _Key.CIPHERTEXT_LIST,
    _Key.MASKED_PARAMETERS,
    _Key.NODE_ID_LIST,
    _Key.SHARE_LIST,
)


def secure_aggregation_stage(content: RecordDict) -> str | None:
    """Return the stage of Flower's secure aggregation that a message asks for.

    None: it is of no such protocol, or its mod has taken the stage out.
    """
    record = content.get(SECURE_AGGREGATION_RECORD)
    stage = record.get(_Key.STAGE) if isinstance(record, ConfigRecord) else None
    return stage if isinstance(stage, str) else None


# How a server of `flwr.server` asks one client for the first model.
GET_PARAMETERS = _MessageTypeLegacy.GET_PARAMETERS


class Training(NamedTuple):
    """A training of Flower's that is running, as far as its frames show it.

    Flower does not tell a Grid either.

    Attributes
    ----------
    strategy : Strategy, LegacyStrategy or None
        Of the Message API, or of `flwr.server`.
    num_rounds : int or None
        That it was given.
    current_round : int or None
        From 1.
    kept : Result, History or None
        In which Flower keeps the metrics of all rounds.
    server : Server or None
        That of `flwr.server`.
    """

    strategy: Strategy | LegacyStrategy | None = None
    num_rounds: int | None = None
    current_round: int | None = None
    kept: Result | History | None = None
    server: Server | None = None

    def metrics(self) -> dict[int, dict[str, Any]]:
        """Return what the server's own evaluation gave, by round."""
        if isinstance(self.kept, Result):
            return _joined(self.kept.evaluate_metrics_serverapp)
        if isinstance(self.kept, History):
            kept = self.kept
            return _of_history(kept.losses_centralized, kept.metrics_centralized)
        return {}

    def all_metrics(self) -> dict[int, dict[str, Any]]:
        """Return all that the server knows, by round: also means over clients.

        Of a name that several have, those of the server's own evaluation.
        """
        if isinstance(self.kept, Result):
            train = self.kept.train_metrics_clientapp
            return _joined(train, self.kept.evaluate_metrics_clientapp, self.metrics())
        if isinstance(self.kept, History):
            kept = self.kept
            fit = _of_history([], kept.metrics_distributed_fit)
            found = _of_history(kept.losses_distributed, kept.metrics_distributed)
            return _joined(fit, found, self.metrics())
        return {}


def _joined(*found: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return metrics by round, the last of a name."""
    by_round: dict[int, dict[str, Any]] = {}
    for rounds in found:
        for number, metrics in rounds.items():
            by_round.setdefault(number, {}).update(metrics)
    return by_round


def _of_history(
    losses: Sequence[tuple[int, float]],
    metrics: Mapping[str, Sequence[tuple[int, Any]]],
) -> dict[int, dict[str, Any]]:
    """Return what a History has, by round."""
    by_round: dict[int, dict[str, Any]] = {}
    for name, values in {"loss": losses, **metrics}.items():
        for number, value in values:
            by_round.setdefault(number, {})[name] = value
    return by_round


def running_training() -> Training:
    """Return the training that is running in this thread."""
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_code.co_name
        if name in ("start", "fit", "__call__"):
            found, values = frame.f_locals.get("self"), frame.f_locals
            if name == "start" and isinstance(found, Strategy):
                return Training(found, *_kept_in(values))
            if name == "fit" and isinstance(found, Server):
                return Training(found.strategy, *_kept_in(values), found)
            context = values.get("context")
            is_flow = isinstance(found, DefaultWorkflow)
            if is_flow and isinstance(context, LegacyContext):
                num_rounds = context.config.num_rounds
                return Training(context.strategy, num_rounds, kept=context.history)
        frame = frame.f_back
    return Training()


def _kept_in(
    values: Mapping[str, Any],
) -> tuple[int | None, int | None, Result | History | None]:
    """Return the number of rounds, this round, and the metrics, of a frame."""
    numbers = (values.get(name) for name in ("num_rounds", "current_round"))
    known = [n if type(n) is int and n > 0 else None for n in numbers]
    kept = (one for one in values.values() if isinstance(one, Result | History))
    return known[0], known[1], next(kept, None)


# One thread at a time turns the garbage collector off and on.
_LOOKING = Lock()


def frame_of(thread: int) -> FrameType | None:
    """Return what a thread does, by its identifier; None if it has ended.

    Python locks the list of threads meanwhile. Were garbage collected there, other
    threads could run, and one that starts would wait for the list, and all for it, for
    ever: seen with Python 3.11.7.
    """
    with _LOOKING:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread)
        finally:
            if was_enabled:
                gc.enable()


def clients_waited_for(thread: int) -> int | None:
    """Return for how many clients a thread of `flwr.server` waits; None: for none."""
    frame = frame_of(thread)
    while frame is not None:
        if frame.f_code is SimpleClientManager.wait_for.__code__:
            return int(frame.f_locals["num_clients"])
        frame = frame.f_back
    return None


def clients_of_a_part(strategy: object, num_clients: int) -> tuple[int, int] | None:
    """Return how many of some clients a strategy of `flwr.server` trains.

    And for how many it waits, to train or to evaluate. None: it is not known.
    """
    if not isinstance(strategy, LegacyFedAvg):  # what others do is not known
        return None
    num_fit, least_fit = strategy.num_fit_clients(num_clients)
    _, least_evaluate = strategy.num_evaluation_clients(num_clients)
    return num_fit, max(num_fit, least_fit, least_evaluate)


def has_plain_rounds(server: object) -> bool:
    """Return whether a server of `flwr.server` asks clients as Flower's own does.

    True for None. It may do more before and after its rounds, as to save results.
    """
    if not isinstance(server, Server):
        return server is None
    kind, manager = type(server), type(server.client_manager())
    own = kind.fit_round, kind.evaluate_round, manager
    return own == (Server.fit_round, Server.evaluate_round, SimpleClientManager)


def main_of(app: ServerApp) -> Callable[[Grid, Context], Any]:
    """Return what a ServerApp does, as a function that returns what its main does.

    A server that it was given as an object is another one in each call: it would begin
    with the model of the call before.
    """

    def main(grid: Grid, context: Context) -> Any:
        if app._main is None:
            own = app if app._server_fn is not None else deepcopy(app)
            own(grid, context)
            return None
        with app._lifespan(context):
            # Flower's type says that it returns nothing; many return its Result.
            run: Callable[[Grid, Context], Any] = app._main
            return run(grid, context)

    return main


def asked_sample_size() -> int | None:
    """Return how many nodes a strategy is about to draw; None if it does not.

    Called by a Grid's `get_node_ids`: Flower's `sample_nodes` asks for the nodes, and
    then draws so many of them.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is sample_nodes.__code__:
            size = frame.f_locals.get("sample_size")
            return size if type(size) is int else None
        frame = frame.f_back
    return None


def instruction_content(
    arrays: ArrayRecord, config: ConfigRecord, client_api: ClientApi
) -> RecordDict:
    """Return the content of a ``train`` message for the clients of ``client_api``."""
    content = RecordDict()
    if client_api in ("both", "message", "action"):
        content["arrays"] = arrays
        content["config"] = config
    if client_api in ("both", "numpy"):
        content["fitins.parameters"] = arrays
        content["fitins.config"] = config
    return content


def message_type(client_api: ClientApi) -> str:
    """Return the type of the messages for the clients of ``client_api``."""
    plain = MessageType.TRAIN
    return f"{plain}.{TUNE_ACTION}" if client_api == "action" else plain


def add_first_mod(app: ClientApp, mod: Mod) -> None:
    """Have a mod see the messages of a Message-API app before the app's other mods.

    Also those of functions that are registered already.
    """
    app._mods = [mod, *app._mods]
    for name, registered in app._registered_funcs.items():
        app._registered_funcs[name] = partial(_through, mod, registered)


def _through(
    mod: Mod, call_next: ClientAppCallable, message: Message, context: Context
) -> Message:
    return mod(message, context, call_next)


def delivered(message: Message) -> Message:
    """Return a copy of a message as its receiver would have it.

    It is what Flower's serialisation makes of the message on the way to another
    machine, with the same errors. Only what nobody can change, such as the bytes of
    arrays, is not copied.
    """
    content = None
    if message.has_content():
        content = message.content.copy()
        for name, record in message.content.items():
            content[name] = _delivered(record)
    error = message.error if message.has_error() else None
    return make_message(copy(message.metadata), content, error)


def _delivered(
    record: ArrayRecord | MetricRecord | ConfigRecord,
) -> ArrayRecord | MetricRecord | ConfigRecord:
    if isinstance(record, ArrayRecord):
        copied = record.copy()
        for name, one in record.items():
            copied[name] = Array(one.dtype, tuple(one.shape), one.stype, one.data)
        return copied
    if all(map(_is_sent_as_it_is, record.values())):
        return record.copy()  # a tenth of the time that serialising takes
    if isinstance(record, MetricRecord):
        return metric_record_from_proto(metric_record_to_proto(record))
    return config_record_from_proto(config_record_to_proto(record))


def _is_sent_as_it_is(value: object) -> bool:
    """Return whether serialisation would give the very same value."""
    if type(value) is int:
        return -(2**63) <= value < 2**64
    if type(value) is str:
        return value.isascii()  # else it may have half of a character
    return type(value) in (float, bool, bytes)


def reply_arrays(content: RecordDict) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of a reply of either kind, in order.

    Raises
    ------
    Exception
        Any kind of error, where the bytes are not a NumPy array.
    """
    arrays: list[np.ndarray[Any, Any]] = []
    for name in ("arrays", "fitres.parameters"):
        # Not of `array_records`, which copies the content N times a round.
        record = content.get(name)
        if isinstance(record, ArrayRecord):
            arrays += [decoded(a) for a in record.values() if len(a.data) > 0]
    return arrays


def decoded(array: Array) -> np.ndarray[Any, Any]:
    """Return what ``array.numpy()`` does, which reads the same header N times a round.

    NumPy compiles it as an expression each time: most of the time of a decoding.
    """
    form = _form(array.data[:_HEADER])
    if array.stype != SType.NUMPY or form is None:
        return array.numpy()
    dtype, shape = form
    if len(array.data) != _HEADER + dtype.itemsize * math.prod(shape):
        return array.numpy()
    return np.frombuffer(array.data, dtype, offset=_HEADER).reshape(shape).copy()


# Length of an array's header, with few axes and in the first version of the format.
_HEADER = 128


@lru_cache(maxsize=64)
def _form(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Return dtype and shape of an array of numbers; None where NumPy has to see it."""
    stream = BytesIO(header)
    try:
        if npy.read_magic(stream) != (1, 0):
            return None
        shape, is_fortran, dtype = npy.read_array_header_1_0(stream)
    except ValueError:
        return None
    simple = stream.tell() == _HEADER and not is_fortran and dtype.kind in "fiu"
    return (dtype, shape) if simple else None


def reply_metrics(content: RecordDict) -> Mapping[str, Any]:
    """Return the metrics of a reply of either kind."""
    if "metrics" in content.metric_records:
        return content.metric_records["metrics"]
    return content.config_records.get("fitres.metrics", ConfigRecord())


def to_array_record(arrays: Sequence[np.ndarray[Any, Any]]) -> ArrayRecord:
    """Return arrays as a record, named by their order as a `NumPyClient` names them."""
    return ArrayRecord({str(i): Array(array) for i, array in enumerate(arrays)})


def key_fingerprints(grid: Grid, nodes: Collection[int]) -> dict[int, str]:
    """Return the fingerprint of the key of each node that has one."""
    keys = {node.node_id: node.public_key for node in grid.get_nodes()}
    return {node: fingerprint_of(keys[node]) for node in nodes if keys.get(node)}


def fingerprint_of(pem: bytes) -> str:
    """Return a public key's SHA-256 in OpenSSH's format, as ``ssh-keygen -lf`` does."""
    key = load_pem_public_key(pem)
    line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    digest = hashlib.sha256(b64decode(line.split()[1])).digest()
    return f"SHA256:{b64encode(digest).decode().rstrip('=')}"


def parsed_config(texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``--node-config`` or ``--run-config``, as Flower reads them.

    Parameters
    ----------
    texts : sequence of str
        Texts of entries, each ``key=value``, or paths of .toml files.

    Raises
    ------
    ClickException
        If they are not in the format.
    OSError
        If a file cannot be read.
    """
    # Imported now: it loads packages that no client process needs.
    from flwr.common.config import parse_config_args

    return dict(parse_config_args([*texts]))


def run_client_app(
    unpack: Callable[[bytes], tuple[Path, tuple[str, str, str]]],
) -> None:
    """Do what ``flwr-clientapp`` does, with the app that ``unpack`` puts in a folder.

    ``unpack`` gets the bundle, and returns the folder and the app's id, version and
    SHA-256. Flower would load the app from a path made of those that the server has
    written. Here these must be the same, and are part of no path.

    Raises
    ------
    KeyError
        If this version of Flower lacks a function that is replaced. Then no app runs.
    """
    from flwr.supernode.runtime import run_clientapp as module

    apps: list[tuple[Path, tuple[str, str, str]]] = []

    def install(content: Any, *_: Any, **__: Any) -> None:
        if not isinstance(content, bytes):
            raise TypeError("This version of Flower hands over no bundle.")
        apps.append(unpack(content))

    def folder(*_: Any, **__: Any) -> Path:
        if len(apps) != 1:
            raise RuntimeError("This version of Flower loads an app without a check.")
        return apps[0][0]

    def loader(*_: Any, **__: Any) -> Callable[..., ClientApp]:
        load = get_loader(default_app_ref="", app_path=str(folder()), multi_app=True)

        def load_same(*named: str) -> ClientApp:
            if named != apps[0][1]:
                raise RefusedError.told(
                    f"The server calls this app {named!r:.300}: its bundle has another "
                    "id, version or SHA-256. Nothing of it was run."
                )
            app: ClientApp = load(*named)
            return app

        return load_same

    replaced = {
        "install_from_fab": install,
        "get_project_dir": folder,
        "get_load_client_app_fn": loader,
    }
    names = vars(module)
    originals = {name: names[name] for name in replaced}
    get_loader = originals["get_load_client_app_fn"]
    names |= replaced
    _run_script("flwr-clientapp", sys.argv[1:])


def run_superexec(arguments: Sequence[str]) -> None:
    """Do what ``flower-superexec`` does with these arguments."""
    _run_script("flower-superexec", arguments)


def _run_script(name: str, arguments: Sequence[str]) -> None:
    """Run a command of Flower's in this process."""
    [script] = entry_points(group="console_scripts", name=name)
    sys.argv = [name, *arguments]
    script.load()()


def ensure_task_identity() -> None:
    """Let ``Message`` be built outside a Flower run, which needs an identity."""
    for name in ("task_id", "run_id", "node_id"):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            setattr(TaskIdentity, name, 1)


class AroundClient(ClientApp):
    """A ClientApp whose messages go through a mod first, before the app's own mods.

    Nothing in the app is changed: it is loaded with its first message.

    Parameters
    ----------
    app : callable
        Returns the ClientApp.
    mod : callable
        Mod that is called around the client.
    """

    def __init__(self, app: Callable[[], ClientApp], mod: Mod) -> None:
        super().__init__()
        self._load, self._mod = app, mod

    def __call__(self, message: Message, context: Context) -> Message:
        """Return the app's answer, as the mod lets it pass."""
        return self._mod(message, context, self._load())


def checked_project(folder: Path) -> dict[str, Any]:
    """Return the pyproject.toml of an app.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If Flower would refuse it.
    """
    # Imported now: it loads packages that no client process needs.
    from flwr.common.config import get_project_config

    return get_project_config(folder)


def flat_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a run config; those of a table as ``table.key``."""
    from flwr.common.config import flatten_dict

    return dict(flatten_dict(config))


def bundled_files(folder: Path) -> dict[str, bytes]:
    """Return the files of an app that ``flwr run`` sends, by path.

    Raises
    ------
    ValueError
        If Flower cannot make a bundle of them.
    """
    # Imported now: it loads packages that no other process needs.
    from flwr.cli.build import build_fab_from_disk

    with zipfile.ZipFile(BytesIO(build_fab_from_disk(folder))) as bundle:
        names = [n for n in bundle.namelist() if not n.startswith(".info/")]
        return {name: bundle.read(name) for name in names}
