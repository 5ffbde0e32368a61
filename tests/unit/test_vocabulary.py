"""The repository is written in Kafka's words and plain technical English, and every reference in its prose resolves.

A failure names the file, the line and the word. Replace the word; CONTRIBUTING.md shows how. A name that belongs
to Kafka, Java or Python goes to `FOREIGN`, a quotation to `QUOTED`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.kit.prose import ROOT, Text, files, read

# Words that describe software as if it were people, and words that Kafka's documentation does not have.
WORDS = (
    "who|whom|whose|whoever|whomever|nobody|everybody|somebody|anybody|anew|said|says|say|told|tells|tell|hear|hears"
    "|heard|obey|obeys|obeyed|bury|buried|burial|mourner|mourns|mourn|wish|wishes|diary|doubts|untold|lives|abdicate"
    "|abdicates|speak|speaks|spoke|spoken|farewell|goodbye|deaf"
)
PHRASES = "the one that|asks for news|ask for news|by right of|former self|former life"

# Names that were replaced by those of Kafka, anywhere; and those that are also English words, in code only.
NAMES = (
    "AskUncleanElection|BoundSession|BrokerChannel|BrokerLine|BrokerSession|ClusterController|ConfigChanges"
    "|ControllerOffice|ControllerReads|ControllerStore|CoordinatedGroups|CoordinatedPartition|CoordinatorFence"
    "|CoordinatorMoved|DirectoryNews|DropDeletionRequests|FencedError|FetchPlan|FetchReading|FollowerProgress"
    "|FollowersHeard|ForeignTarget|GroupsOfPartition|HeldAnswer|HeldGroup|HiddenBatches|InterBrokerTrust|IsrWriter"
    "|JoinWithId|LeaderAndIsrOrder|LeaderEpochs|LineOwner|LoadedDir|LogUpkeep|NotHad|OperatorWishes|PaperBroker"
    "|ReadReplica|RebalanceDue|RecordPort|RecordTransport|RefusedError|RememberedBatch|ReportDoubt|RowMaker"
    "|SessionLife|SessionPartition|ShutdownVerdict|SideUnreadable|StopReplicaOrder|UpdateMetadataOrder|WaitingFetches"
    "|WaitingRequests|WritesIsr|ZooKeeperSession|controlled_shutdowns|controller_line|controller_office"
    "|controller_reads|controller_store|controller_wishes|coordinated_groups|coordinated_partition|coordinator_fence"
    "|directory_news|fetch_plan|fetch_reading|followed_partition|group_loading|held_group|isr_writer|leader_range"
    "|log_upkeep|mortal_controller|nearest_replica|replace_wish|replica_news|take_answer|waiting_fetches"
    "|waiting_requests"
)

CODE_NAMES = (
    "Announcements|Diary|Doomed|Electorate|Errands|Following|Hooks|Hosted|Leading|Lives|Membership|Orders|Parked|Peers"
    "|Rounds|Saying|Standing|Standstill|Surroundings|Term|announcements|diary|doubts|incarnation|mourner|surroundings|takeover"
)

# The examples of CONTRIBUTING.md stay as they are.
QUOTED = (
    "Whoever fetched has all there is, and is what it wants to be",
    "Who joins or lags becomes one ISR write",
    "Nobody finds its broker deaf meanwhile",
    "The controller tells everybody who lives",
    "A wish that was not heard is said anew",
    # A field of a file of earlier versions.
    '"untold"',
)

# Names that belong to Kafka, Java, Python or a dependency, and are not in our code; G1 is a collector of Java.
FOREIGN = frozenset(
    {
        "G1",
        "SimpleRate",
        "consumer_timeout_ms",
        "eval",
        "incremental_assign",
        "murmur2_random",
        "report.md",
        "sitecustomize.py",
        "writev",
    }
)

# Pages with names of tests and files of other repositories.
FOREIGN_TESTS = ("tests/compat/SUITES.md",)

_RETIRED = re.compile(
    rf"(?<![A-Za-z])(?:{WORDS}|{'|'.join(map(str.capitalize, WORDS.split('|')))})(?![A-Za-z])"
    rf"|(?i:\b(?:{PHRASES})\b)|\b(?:{NAMES})\b"
)
_RETIRED_WORDS = frozenset(WORDS.split("|")) | frozenset(map(str.capitalize, WORDS.split("|")))
_RETIRED_NAMES = frozenset(NAMES.split("|"))
_LETTERS = re.compile("[A-Za-z]+")
_NAME = re.compile(r"\w+")
_QUOTED = re.compile("|".join(map(re.escape, QUOTED)))
_BACKTICKS = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_FILE = re.compile(r"(?<![\w./*<{}-])[\w./-]*\w\.(?:py|md)\b(?![\w*])")
_NUMBER = re.compile(r"(?<![\w.-])([A-Z])(\d{1,2})(?![\w.-])")
_TEST = re.compile(r"\btest_\w+\b(?![\w.*]*\*)")
_FIRST_CELL = re.compile(r"^\|[^|\n]*\|", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#\s]+)")
_SETTING = re.compile(r'"(kbroker(?:\.\w+)+)"')
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_PACKAGES = ("kbroker", "kclient", "mirrormaker", "spark_jobs", "benchmarks", "tests")


def _texts() -> list[Text]:
    own = (ROOT / "tests/unit/test_vocabulary.py", ROOT / "tests/kit/prose.py")
    return [read(path) for path in files() if path not in own]


class _Known:
    """What a reference may resolve to: paths, modules, names of the code, scenarios."""

    def __init__(self, texts: list[Text]) -> None:
        self.paths = {text.path for text in texts} | {
            "tests/unit/test_vocabulary.py",
            "tests/kit/prose.py",
        }
        self.tails = {path[i:] for path in self.paths for i in _starts(path)}
        for path in list(self.tails):
            while "/" in path:
                path = path.rpartition("/")[0]
                self.tails.add(path)
        self.names = set().union(*(text.names for text in texts))
        self.names |= {part.removesuffix(".py") for path in self.paths for part in path.split("/")}
        self.words = self.names.union(*(text.words for text in texts))
        scenarios = (ROOT / "tests/SCENARIOS.md").read_text()
        self.settings = {name for text in texts for name in _SETTING.findall(text.whole)}
        self.scenarios = set(re.findall(r"^\| (S\d+) \|", scenarios, re.MULTILINE))

    def file(self, path: str) -> bool:
        """Return whether *path* is a file or directory here, or the end of the path of one."""
        return path.lstrip("./").rstrip("/") in self.tails

    def name(self, dotted: str) -> bool:
        """Return whether every part of a name in backticks is a name of ours, or it is none that looks like ours."""
        if dotted in self.settings or dotted in FOREIGN:
            return True
        parts = dotted.split(".")
        if parts[0] in _PACKAGES and len(parts) > 1:
            for i in range(len(parts), 1, -1):
                if "/".join(parts[:i]) in self.tails or "/".join(parts[:i]) + ".py" in self.tails:
                    return all(part in self.names for part in parts[i:])
            return False
        if len(parts) > 1 and not (parts[0] in self.names and parts[0][0].isupper()):
            return True  # a setting, an attribute of a variable: min.insync.replicas, slice.offsets
        return all(part in self.words for part in parts)


def _starts(path: str) -> list[int]:
    return [0, *(i + 1 for i, letter in enumerate(path) if letter == "/")]


def _may_be_retired(whole: str) -> bool:
    """Return whether the slow search can find anything: most files have none of the words, and sets are fast."""
    lower = whole.lower()
    return not (
        _RETIRED_WORDS.isdisjoint(_LETTERS.findall(whole))
        and _RETIRED_NAMES.isdisjoint(_NAME.findall(whole))
        and not any(phrase in lower for phrase in PHRASES.split("|"))
    )


def _retired(text: Text) -> list[tuple[int, str]]:
    whole = _QUOTED.sub(lambda quote: " " * len(quote.group()), text.whole)
    found = []
    if _may_be_retired(whole):
        found = [(match.start(), match.group()) for match in _RETIRED.finditer(whole)]
    found += [
        (text.whole.index(name), name)
        for name in sorted(text.names.intersection(CODE_NAMES.split("|")))
    ]
    found += [
        (0, f"{match.group()} in the name of the file") for match in _RETIRED.finditer(text.path)
    ]
    return [(at, f"retired: {name}") for at, name in found]


def _names(prose: str, known: _Known) -> Iterator[tuple[int, str]]:
    for match in _BACKTICKS.finditer(prose):
        name = match.group(1).removesuffix("()")
        if _DOTTED.fullmatch(name) and not name.endswith((".py", ".md")) and not known.name(name):
            yield match.start(), f"no such name: {name}"


def _links(text: Text) -> Iterator[tuple[int, str]]:
    for match in _LINK.finditer(text.whole if text.path.endswith(".md") else ""):
        page = match.group(1)
        if "://" not in page and not ((ROOT / text.path).parent / page).exists():
            yield match.start(), f"no such page: {page}"


def _dangling(text: Text, known: _Known) -> list[tuple[int, str]]:
    found = list(_links(text))
    for start, prose in text.prose:
        for pattern, kind, resolves in (
            (_FILE, "file", known.file),
            (_NUMBER, "scenario", known.scenarios.__contains__),
            (_TEST, "test", known.names.__contains__),
        ):
            if text.path in FOREIGN_TESTS and kind != "scenario":
                continue
            for match in pattern.finditer(prose):
                if not resolves(match.group()) and match.group() not in FOREIGN:
                    found.append((start + match.start(), f"no such {kind}: {match.group()}"))
        if text.path.startswith("docs/coming-from-"):
            # The first column of its tables has the names of another library.
            prose = _FIRST_CELL.sub(lambda cell: " " * len(cell.group()), prose)
        found.extend((start + at, what) for at, what in _names(prose, known))
    return found


def test_no_file_has_a_retired_word_or_a_reference_that_does_not_resolve() -> None:
    texts = _texts()
    known = _Known(texts)
    faults = [
        f"{text.path}:{text.line(at)}: {what}"
        for text in texts
        for at, what in sorted(_retired(text) + _dangling(text, known))
    ]
    assert not faults, "\n".join(["", *faults])


def test_every_test_of_the_scenarios_is_in_the_file_that_is_named() -> None:
    page = (ROOT / "tests/SCENARIOS.md").read_text()
    names: set[str] = set()
    missing = []
    for match in re.finditer(r"`((?:unit|property|integration)/[\w/]*\.py)?(?:::(\w+))?`", page):
        if match.group(1):
            file = ROOT / "tests" / match.group(1)
            names = read(file).names if file.exists() else set()
        if match.group(2) and match.group(2) not in names:
            missing.append(match.group())
    assert not missing


def test_each_kind_of_fault_is_found() -> None:
    prose = "# T1: `NoSuchName` asks nowhere.py, see test_of_nothing; S99, `kbroker.log.no_such_module`.\n"
    text = Text("kbroker/invented.py", prose + "tell_nobody = Hosted  # whoever hears\n")
    text.prose = [(0, prose)]
    text.names = {"Hosted"}
    found = [what for _, what in sorted(_retired(text) + _dangling(text, _Known([])))]
    assert found == [
        "no such scenario: T1",
        "no such name: NoSuchName",
        "no such file: nowhere.py",
        "no such test: test_of_nothing",
        "no such scenario: S99",
        "no such name: kbroker.log.no_such_module",
        "retired: tell",
        "retired: nobody",
        "retired: Hosted",
        "retired: whoever",
        "retired: hears",
    ]
