"""The repository is written in Kafka's words and plain technical English, and every reference in its prose resolves.

A failure names the file, the line and the word. Replace the word; CONTRIBUTING.md shows how. A name that belongs
to Kafka, Java or Python goes to `FOREIGN`, a quotation to `QUOTED`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from tests.kit.prose import DATA, ROOT, Text, files, read

# Words that describe software as if it were people, and words that Kafka's documentation does not have.
WORDS = (
    "who|whom|whose|whoever|whomever|nobody|everybody|somebody|anybody|anew|said|says|say|told|tells|tell|hear|hears"
    "|heard|obey|obeys|obeyed|bury|buried|burial|mourner|mourns|mourn|wish|wishes|diary|doubts|untold|lives|abdicate"
    "|abdicates|speak|speaks|spoke|spoken|farewell|goodbye|deaf"
    "|question|questions|heir|heirs|believe|believes|believed|grant|grants|granted"
)
PHRASES = "the one that|asks for news|ask for news|by right of|former self|former life"

# Kafka verifies (KIP-890), allocates (KIP-72), elects and accepts. Its documentation has "granted" for ACLs only: the
# word returns with the authorizer. The clock of Twisted's tests has a method `pump`.
PRODUCT_WORDS = "pump|pumps"

# Names that were replaced by those of Kafka, anywhere; and those that are also English words, in code only.
NAMES = (
    "AskUncleanElection|BoundSession|BrokerChannel|BrokerLine|BrokerSession|ClusterController|ConfigChanges"
    "|ControllerOffice|ControllerReads|ControllerStore|CoordinatedGroups|CoordinatedPartition|CoordinatorFence"
    "|CoordinatorMoved|DirectoryNews|DropDeletionRequests|FencedError|FetchPlan|FetchReading|FollowerProgress"
    "|FollowersHeard|ForeignTarget|GroupsOfPartition|HeldAnswer|HeldGroup|HiddenBatches|InterBrokerTrust|IsrWriter"
    "|JoinWithId|LeaderAndIsrOrder|LeaderEpochs|LineOwner|LoadedDir|LogUpkeep|NotHad|OperatorWishes|PaperBroker"
    "|ReadReplica|RebalanceDue|RecordPort|RecordTransport|Question|RefusedError|RememberedBatch|TransactionVerifier|ReportDoubt|RowMaker"
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

# Names that belong to Kafka, Java, Spark, Python or a dependency, and are not in our code; G1 is a collector of Java.
FOREIGN = frozenset(
    {
        "CommitRecordMetadataAndOffset.olderThan",
        "G1",
        "LocalLog.replaceSegments",
        "RuleBasedStateMachine",
        "SimpleRate",
        "Trigger.AvailableNow",
        "Trigger.Continuous",
        "Trigger.Once",
        "asyncio.wait_for",
        "asyncio.wrap_future",
        "consumer_timeout_ms",
        "eval",
        "incremental_assign",
        "jute.maxbuffer",
        "murmur2_random",
        "org.apache.kafka.common.Uuid",
        "report.md",
        "sitecustomize",
        "sitecustomize.py",
        "spark.network.crypto.enabled",
        "writev",
    }
)
# Of the examples of pages and tests.
EXAMPLES = frozenset({"f.txt", "kmirror.rules.yml", "orders.west.v1", "payment.avsc", "policy.py"})

# Pages with names of tests and files of other repositories.
FOREIGN_TESTS = ("tests/compat/SUITES.md",)

_RETIRED = re.compile(
    rf"(?<![A-Za-z])(?:{WORDS}|{'|'.join(map(str.capitalize, WORDS.split('|')))})(?![A-Za-z])"
    rf"|(?i:\b(?:{PHRASES})\b)|\b(?:{NAMES})\b"
)
_PRODUCT_RETIRED = re.compile(
    rf"(?<![A-Za-z])(?:{PRODUCT_WORDS}|{'|'.join(map(str.capitalize, PRODUCT_WORDS.split('|')))})(?![A-Za-z])"
)
_PRODUCT = ("kbroker/", "kclient/", "mirrormaker/", "spark_jobs/")
# A consumer has a membership; in the broker the word had four meanings.
_CODE_STEMS = frozenset(CODE_NAMES.lower().split("|")) - {"membership"}
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
_PLACE = re.compile(r"[a-z_]\w*(?:/\w+)+/?")
"""A module or directory in backticks, without a suffix: `log/core`, `mirrormaker/link`."""
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_CLASS = re.compile(r"^\s*class (\w+)(?:\(([^)]*)\))?:", re.MULTILINE)
# A sentence ends before a blank; a paragraph before an empty line, an item of a list or a row of a table.
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[\"')*`]*\s+")
_ITEM = re.compile(r"^\s*(?:[-*•]|\d+\.)\s+")
_NO_PROSE = re.compile(r"\s*(?:\||>>>|\.\.\. |[=~^-]+$|$)|.*\S {2,}\S")
# Versions, fields and exit codes are lists, and may be long: "v3 throttle time; v5 leader epochs (KIP-320)".
_LISTED = re.compile(
    r"(?:^|[;·] ?)v\d.*[;·] ?v\d|\b[iu](?:16|32|64)\b.*\b[iu](?:16|32|64)\b|^(?:Exit codes?|In):? "
)
# What click prints as help is written for a terminal.
_HELP = re.compile(r"/cli/|/commands/|/__main__\.py$")
LONGEST_SENTENCE = 25
_PACKAGES = ("kbroker", "kclient", "mirrormaker", "spark_jobs", "benchmarks", "tests")


def _texts() -> list[Text]:
    own = (ROOT / "tests/unit/test_vocabulary.py", ROOT / "tests/kit/prose.py")
    return [read(path) for path in files() if path not in own]


class _Known:
    """What a reference may resolve to: paths, modules, names of the code, whole strings, scenarios."""

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
        files = {part.removesuffix(".py") for path in self.paths for part in path.split("/")}
        self.names = files.union(*(text.names for text in texts))
        # What prose of the product may name: a test is not part of it.
        own = [text for text in texts if not text.path.startswith("tests/")]
        self.product_names = files.union(*(text.names for text in own))
        self.strings = set().union(*(text.strings for text in texts))
        self._modules = _modules(texts)
        self._classes: dict[str, list[Text]] = defaultdict(list)
        self._bases: dict[str, set[str]] = defaultdict(set)
        for text in texts:
            for match in _CLASS.finditer(text.whole if text.path.endswith(".py") else ""):
                self._classes[match.group(1)].append(text)
                self._bases[match.group(1)].update(_NAME.findall(match.group(2) or ""))
        scenarios = (ROOT / "tests/SCENARIOS.md").read_text()
        self.scenarios = set(re.findall(r"^\| (S\d+) \|", scenarios, re.MULTILINE))

    def file(self, path: str) -> bool:
        """Return whether *path* is a file or directory here, the end of the path of one, or an example."""
        return path.lstrip("./").rstrip("/") in self.tails or path in EXAMPLES

    def name(self, dotted: str, *, of_product: bool = False) -> bool:
        """Return whether a name in backticks exists: a string, a setting, a module, a class, an attribute, a variable.

        The attribute of a class is a name in the file of the class, or of one of its bases. A setting is the
        identifier with dots in place of underscores.
        """
        if dotted in self.strings or dotted in FOREIGN or dotted in EXAMPLES:
            return True
        names = self.product_names if of_product else self.names
        parts = dotted.split(".")
        if len(parts) == 1 or dotted.replace(".", "_") in names:
            return dotted.replace(".", "_") in names
        for i in range(len(parts), 0, -1):
            for module in self._modules.get(".".join(parts[:i]), ()):
                if module.names.issuperset(parts[i:]):
                    return True
        if parts[0] in _PACKAGES:
            return False
        if parts[0] in self._classes:
            return self._names_of(parts[0]).issuperset(parts[1:])
        return all(part in names or part in self.strings for part in parts)

    def _names_of(self, name: str, *derived: str) -> set[str]:
        """Return the names in the files of class *name* and of its bases."""
        found = set().union(*(text.names for text in self._classes.get(name, ())))
        for base in self._bases.get(name, ()):
            if base not in (name, *derived):
                found |= self._names_of(base, name, *derived)
        return found


def _modules(texts: list[Text]) -> dict[str, list[Text]]:
    """Return the modules by the ends of their dotted names: `core.states`, `replica.core.states`."""
    found: dict[str, list[Text]] = defaultdict(list)
    for text in texts:
        if text.path.endswith(".py"):
            parts = text.path.removesuffix(".py").removesuffix("/__init__").split("/")
            for i in range(len(parts)):
                found[".".join(parts[i:])].append(text)
    return found


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
    if not text.path.startswith("tests/"):
        found += [(match.start(), match.group()) for match in _PRODUCT_RETIRED.finditer(whole)]
    if not DATA.fullmatch(text.path.rpartition("/")[2]):
        found += [
            (text.whole.index(name), name)
            for name in sorted(text.names.intersection(CODE_NAMES.split("|")))
        ]
    found += [(0, f"{name} in the name of the file") for name in _retired_in_path(text.path)]
    return [(at, f"retired: {name}") for at, name in found]


def _retired_in_path(path: str) -> Iterator[str]:
    """Yield the retired words and names in a path: rooms and modules are read like code, in snake case."""
    patterns = (_RETIRED,) if path.startswith("tests/") else (_RETIRED, _PRODUCT_RETIRED)
    for pattern in patterns:
        yield from (match.group() for match in pattern.finditer(path))
    if not path.startswith("tests/"):
        stems = {part.partition(".")[0] for part in path.split("/")}
        yield from sorted(stems & _CODE_STEMS)


def _names(prose: str, known: _Known, *, of_product: bool) -> Iterator[tuple[int, str]]:
    for match in _BACKTICKS.finditer(prose):
        name = match.group(1).removesuffix("()")
        if _PLACE.fullmatch(name) and not (known.file(name) or known.file(f"{name}.py")):
            yield match.start(), f"no such place: {name}"
        if not _DOTTED.fullmatch(name) or name.endswith((".py", ".md")):
            continue
        if not known.name(name, of_product=of_product):
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
        # Pages name tests and mutants as the proof of what they state; code does not.
        of_product = text.path.endswith(".py") and text.path.startswith(_PRODUCT)
        found.extend((start + at, what) for at, what in _names(prose, known, of_product=of_product))
    return found


def _blocks(text: Text) -> Iterator[tuple[int, str]]:
    """Yield docstrings, and comments of adjacent lines, without their quotes and signs."""
    comment: list[str] = []
    start = end = 0
    for at, prose in [*text.prose, (len(text.whole), "")]:
        if comment and not (prose.startswith("#") and not text.whole[end:at].strip(" ")[1:]):
            yield start, "\n".join(comment)
            comment = []
        if prose.startswith("#"):
            start = start if comment else at
            comment.append(prose.lstrip("# "))
            end = at + len(prose)
        elif prose:
            yield at, prose.strip('"')


def _paragraphs(block: str) -> Iterator[str]:
    """Yield the paragraphs and the items of lists in *block*; code and tables are left out."""
    first, *others = block.split("\n")
    base = min((len(line) - len(line.lstrip()) for line in others if line.strip()), default=0)
    lines: list[str] = []
    for line in (" " * base + first, *others, ""):
        is_code = not lines and line.startswith(" " * (base + 4))
        if is_code or _NO_PROSE.match(line) or _ITEM.match(line):
            yield " ".join(lines)
            lines = []
        if not (is_code or _NO_PROSE.match(line)):
            lines.append(_ITEM.sub("", line, count=1).strip())


def _long_sentences(text: Text) -> Iterator[tuple[int, str]]:
    for at, block in _blocks(text):
        for paragraph in _paragraphs(block):
            for sentence in _SENTENCE_END.split(paragraph):
                words = [word for word in sentence.split() if _NAME.search(word)]
                if len(words) > LONGEST_SENTENCE and not _LISTED.search(sentence):
                    yield at, f"{len(words)} words: {sentence}"


def test_no_file_has_a_retired_word_or_a_reference_that_does_not_resolve() -> None:
    texts = _texts()
    known = _Known(texts)
    faults = [
        f"{text.path}:{text.line(at)}: {what}"
        for text in texts
        for at, what in sorted(_retired(text) + _dangling(text, known))
    ]
    assert not faults, "\n".join(["", *faults])


def test_no_sentence_of_a_docstring_or_comment_of_the_packages_is_long() -> None:
    texts = [text for text in _texts() if text.path.endswith(".py")]
    faults = [
        f"{text.path}:{text.line(at)}: {what}"
        for text in texts
        if text.path.startswith(_PRODUCT) and not _HELP.search(text.path)
        for at, what in _long_sentences(text)
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


def test_no_row_of_a_table_is_cut_off_from_it() -> None:
    """Behind an empty line Markdown shows the rows of a table as text."""
    cut = []
    for path in (path for path in files() if path.suffix == ".md"):
        for first in re.finditer(r"(?:^|\n\n)(\|.*)\n(.*)", path.read_text()):
            if not re.fullmatch(r"\|[-:| ]+", first.group(2)):
                cut.append(f"{path.relative_to(ROOT)}: {first.group(1)}")
    assert not cut, "\n".join(["", *cut])


def test_each_kind_of_fault_is_found() -> None:
    prose = "# T1: `NoSuchName` asks nowhere.py, see test_of_nothing; S99, `kbroker.log.no_such_module`, `log/none`.\n"
    text = Text("kbroker/hosted.py", prose + "tell_nobody = Hosted  # whoever hears a question\n")
    text.prose = [(0, prose)]
    text.names = {"Hosted"}
    found = [what for _, what in sorted(_retired(text) + _dangling(text, _Known([])))]
    assert found == [
        "retired: hosted in the name of the file",
        "no such scenario: T1",
        "no such name: NoSuchName",
        "no such file: nowhere.py",
        "no such test: test_of_nothing",
        "no such scenario: S99",
        "no such name: kbroker.log.no_such_module",
        "no such place: log/none",
        "retired: tell",
        "retired: nobody",
        "retired: Hosted",
        "retired: whoever",
        "retired: hears",
        "retired: question",
    ]


def test_a_name_in_backticks_is_a_name_of_the_code_or_a_whole_string() -> None:
    code = Text("kbroker/log/states.py", "class Opened(Base):\n    offset = 1\n")
    code.names = {"Opened", "Base", "offset", "flush_ms"}
    code.strings = {"log.dirs", "a sentence with words"}
    base = Text("kbroker/log/base.py", "class Base:\n    inherited = 1\n")
    base.names = {"Base", "inherited"}
    test = Text("tests/unit/test_it.py", "of_tests = 1\n")
    test.names = {"of_tests"}
    known = _Known([code, base, test])
    exist = ("Opened.inherited", "flush.ms", "log.dirs", "states.Opened", "kbroker.log.states")
    assert [name for name in exist if not known.name(name)] == []
    assert known.name("of_tests")
    assert not known.name("of_tests", of_product=True)
    unknown = ("sentence", "Opened.flush", "states.closed", "kbroker.log.offset", "a.b")
    assert [name for name in unknown if known.name(name)] == []


def test_sentences_are_counted_in_docstrings_and_comments_and_lists_are_not() -> None:
    words = " ".join(f"w{n}" for n in range(LONGEST_SENTENCE))
    short, long = f"{words}.", f"{words} more."
    code = (
        f'"""{short} {short}\n\n1. {short}\n2. {long}\n\n    code {long}\n| a table | {long}\n"""\n'
        f"# {words}\n# more.\n\n# {words}\n\n# {short}\n# v3 {words}; v4 more.\n"
    )
    text = Text("kbroker/invented.py", code)
    docstring = code.index("# ")
    text.prose = [(0, code[: docstring - 1])]
    text.prose += [(match.start(), match.group()) for match in re.finditer("# .*", code)]
    assert [(text.line(at), what[:8]) for at, what in _long_sentences(text)] == [
        (1, "26 words"),
        (9, "26 words"),
    ]
