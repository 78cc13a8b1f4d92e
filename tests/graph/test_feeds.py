"""Feeds are read and checked before anything runs."""

import json

import pytest

from hyperscale.plan import FeedPer, Take

from .conftest import Files
from .test_load_settings import STEP
from .test_wrong_input import refusal, workflow


def with_feed(feed: str) -> str:
    return workflow("Shop", f"people = {feed}\n{STEP}")


def test_a_feed_is_in_the_plan_and_its_file_among_the_files(files: Files) -> None:
    files.write("email,name\na@b,Ann\nc@d,Cy\n", "people.csv")
    plan = files.plan(with_feed('Feed("people.csv", take="once", per="vu")')).workflows[0]
    (feed,) = plan.feeds
    assert (feed.name, feed.take, feed.per, feed.rows) == ("people", Take.ONCE, FeedPer.VU, 2)
    assert plan.files == {"people.csv": str(files.directory / "people.csv")}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("people.csv", 'email,name\r\na@b,"Ann, B"\r\n\r\n'),
        ("people.json", json.dumps([{"email": "a@b", "name": "Ann, B"}])),
        ("people.jsonl", '{"email": "a@b", "name": "Ann, B"}\n\n'),
    ],
)
def test_every_kind_of_file_gives_the_same_rows(files: Files, name: str, content: str) -> None:
    (files.directory / name).write_text(content, newline="")
    in_file = files.plan(with_feed(f'Feed("{name}")')).workflows[0].feeds[0]
    in_code = files.plan(with_feed('Feed([{"email": "a@b", "name": "Ann, B"}])')).workflows[0]
    assert in_file == in_code.feeds[0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.csv", "", "p.csv:1: the header has a column without a name"),
        ("p.csv", "email\n", "p.csv has no rows"),
        ("p.csv", "a,b\n1,2\n1\n", "p.csv:3: row 2 has 1 values, the header has 2 columns"),
        ("p.csv", "a,b\n1,2,3\n", "p.csv:2: row 1 has 3 values, the header has 2 columns"),
        ("p.csv", "a,a\n1,2\n", "p.csv:1: the header has two columns 'a'"),
        ("p.csv", 'a\n"1\n', "p.csv:2: not CSV"),
        ("p.json", "{", "p.json: not JSON"),
        ("p.json", "{}", "p.json: not a list of objects"),
        ("p.json", "[]", "p.json has no rows"),
        ("p.json", '[{"a": 1}, 5]', "p.json: row 2 is 5, not an object with names"),
        ("p.jsonl", '{"a": 1}\n{"a": \n', "p.jsonl:2: not JSON"),
        ("p.jsonl", '{"a": 1}\n[1]\n', "p.jsonl:2: the row is [1], not an object with names"),
        ("p.txt", "a\n1\n", "p.txt: unknown kind of file"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(
    files: Files, name: str, content: str, said: str
) -> None:
    (files.directory / name).write_text(content)
    refused = refusal(files, with_feed(f'Feed("{name}")'))
    assert "Shop.people: " in refused
    assert said in refused


@pytest.mark.parametrize(
    ("feed", "said"),
    [
        ('Feed("none.csv")', "none.csv: cannot be read: No such file or directory"),
        ('Feed("p.csv", take="first")', "Shop.people: take: 'first' is unknown"),
        ('Feed("p.csv", per="user")', "Shop.people: per: 'user' is unknown"),
        ("Feed([])", "the feed has no rows"),
        ("Feed([1])", "row 1 is 1, not an object with names"),
        ("Feed([{1: 2}])", "row 1 is {1: 2}, not an object with names"),
        ("Feed(5)", "5 is neither a file nor rows"),
        ("Feed({'a': 1})", "{'a': 1} is neither a file nor rows"),
    ],
)
def test_a_wrong_feed_is_refused(files: Files, feed: str, said: str) -> None:
    (files.directory / "p.csv").write_text("a\n1\n")
    assert said in refusal(files, with_feed(feed))
