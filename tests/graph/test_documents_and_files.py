"""GraphQL documents are validated against a schema; directories and globs name their files."""

import pytest

from hyperscale.errors import InputError
from hyperscale.graph import blueprint

from .conftest import Files

SHOP = """
class Shop(Workflow):
    schema = GraphQLSchema("schema.graphql")

    @step()
    async def ask(self, query: Query = "{QUERY}") -> GraphQLResponse:
        return await self.client.graphql.query("http://shop.test/graphql", query)
"""


def test_documents_of_a_workflow_are_validated_against_its_schema(files: Files) -> None:
    (files.directory / "schema.graphql").write_text("type Query { me(id: Int): String }")
    files.plan(SHOP.replace("QUERY", " me(id: 1) "))
    for query, said in (
        (" you ", "Cannot query field 'you' on type 'Query'"),
        (" me(id: true) ", "Int cannot represent non-integer value"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            files.plan(SHOP.replace("QUERY", query), name="shop.py")
        assert "Shop.ask: query: line 1: " in str(caught.value)
        assert "schema.graphql is the schema" in str(caught.value)


def test_a_schema_that_is_none_is_refused(files: Files) -> None:
    (files.directory / "schema.graphql").write_text("type Query {")
    with pytest.raises(InputError, match=r"schema\.graphql: not a GraphQL schema: line 1"):
        files.plan(SHOP.replace("QUERY", "me"))


UPLOAD = """
class Upload(Workflow):
    @step()
    async def all(self, folder: Directory = "folder", texts: FileGlob = "**/*.txt") -> HTTPResponse:
        return await self.client.http.post("http://shop.test/", files=folder)
"""


def test_a_directory_and_a_glob_are_the_files_they_name(files: Files) -> None:
    folder = files.directory / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("first")
    (folder / "deep" / "b.png").write_bytes(b"second")
    plan = files.plan(UPLOAD).workflows[0]
    assert set(plan.files) == {"folder\na.txt", "folder\ndeep/b.png", "**/*.txt\nfolder/a.txt"}

    values = blueprint(files.classes(UPLOAD)[-1], files=plan.files).layers[0][0].optimized
    assert [(str(each.path), bytes(each)) for each in values["folder"]] == [  # type: ignore[attr-defined]
        ("a.txt", b"first"),
        ("deep/b.png", b"second"),
    ]
    assert [each.filename for each in values["texts"]] == ["a.txt"]  # type: ignore[attr-defined]


def test_an_empty_directory_is_refused(files: Files) -> None:
    (files.directory / "folder").mkdir()
    with pytest.raises(InputError, match="the directory 'folder' has no files"):
        files.plan(UPLOAD)
