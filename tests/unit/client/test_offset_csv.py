"""The CSV files of kafka-consumer-groups: both formats, and what is wrong in which line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.admin.offset_csv import OffsetCsvError, read_offsets, write_offsets
from kclient.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_both_formats_are_written_in_order():
    offsets = {"h": {T0: 3}, "g": {T1: 2, T0: 1}}
    assert write_offsets(offsets, with_group=True) == "g,t,0,1\ng,t,1,2\nh,t,0,3\n"
    assert write_offsets({"g": offsets["g"]}, with_group=False) == "t,0,1\nt,1,2\n"


def test_both_formats_are_read():
    assert read_offsets("t,0,1\nt,1,2\n", group="g") == {"g": {T0: 1, T1: 2}}
    text = "g,t,0,1\nh,t,1,2\n"
    assert read_offsets(text, group=None) == {"g": {T0: 1}, "h": {T1: 2}}
    assert read_offsets(text, group="g") == {"g": {T0: 1}, "h": {T1: 2}}


def test_kafka_quotes_long_names():
    name = "a" * 25
    assert read_offsets(f'"{name}","t",0,1\n', group=None) == {name: {T0: 1}}


def test_other_editors_of_the_file_are_no_problem():
    assert read_offsets("\ufefft, 0, 1\r\n\r\nt ,1,2", group="g") == {"g": {T0: 1, T1: 2}}


@pytest.mark.parametrize(
    ("text", "group", "problem"),
    [
        ("", "g", "there are no offsets; expected lines of topic,partition,offset or group,"),
        ("\n \n", "g", "there are no offsets"),
        ("t,0,1\n\nt,0\n", "g", "line 3: expected topic,partition,offset, found 't,0'"),
        ("t,0,1\ng,t,0,1\n", "g", "line 2: expected topic,partition,offset, found 'g,t,0,1'"),
        ("g,t,0,1\nt,0,1\n", None, "line 2: expected group,topic,partition,offset, found"),
        ("t;0;1\n", "g", "line 1: expected topic,partition,offset or group,topic,partition,offset"),
        ("a,b,c,d,e\n", "g", "line 1: expected"),
        ("t,0,1\n", None, "line 1 is topic,partition,offset without a group: name exactly one"),
        ("topic,partition,offset\n", "g", "line 1: 'partition' is not a partition"),
        ("t,0,1\nt,-1,1\n", "g", "line 2: '-1' is not a partition"),
        ("t,0,1\nt,1,x\n", "g", "line 2: 'x' is not an offset"),
        ("t,0,1\nt,1,-1\n", "g", "line 2: '-1' is not an offset"),
        ("t,0,1_0\n", "g", "line 1: '1_0' is not an offset"),
        ("t,٣,1\n", "g", "line 1: '٣' is not a partition"),
        ("t,0,\n", "g", "line 1: '' is not an offset"),
        (",0,1\n", "g", "line 1 has no topic"),
        ("t,0,1\nt,1,1\nt,0,1\n", "g", "line 3: t-0 of group 'g' is in line 1 already"),
        ('t,0,1\n"t,1,1\nt,2,1\n', "g", "line 2: unexpected end of data"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(text, group, problem):
    with pytest.raises(OffsetCsvError) as caught:
        read_offsets(text, group=group)
    assert str(caught.value).startswith(problem)


def test_a_partition_may_occur_in_two_groups():
    assert read_offsets("g,t,0,1\nh,t,0,2\n", group=None) == {"g": {T0: 1}, "h": {T0: 2}}


topics = st.text("abcXYZ019._-", min_size=1, max_size=30)
of_group = st.dictionaries(
    st.builds(TopicPartition, topics, st.integers(0, 1 << 31)),
    st.integers(0, 1 << 63),
    min_size=1,
    max_size=4,
)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)


@given(st.dictionaries(names, of_group, min_size=1, max_size=4))
def test_what_is_written_is_read_again(offsets):
    assert read_offsets(write_offsets(offsets, with_group=True), group=None) == offsets


@given(of_group)
def test_what_is_written_of_one_group_is_read_again(offsets):
    text = write_offsets({"g": offsets}, with_group=False)
    assert read_offsets(text, group="h") == {"h": offsets}
