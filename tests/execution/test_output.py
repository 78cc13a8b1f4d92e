"""Output of user code is captured, limited and logged."""

from pathlib import Path

from hyperscale.execution.protocol import ExecutorOutput
from tests.lab.executors import Bench, Lab


def test_the_last_output_of_a_slot_is_not_attributed_to_the_next_slot(lab: Lab) -> None:
    lab.write("""
        class Talker(Workflow):
            vus = 1
            duration = "10s"
            iterations = 1

            @step()
            async def talk(self) -> Result:
                print("of another", file=sys.stderr)
                return Result()

        class Quitter(Workflow):
            vus = 1
            duration = "10s"

            @step()
            async def quit(self) -> Result:
                os._exit(7)
    """)

    async def work(bench: Bench) -> None:
        await bench.run("Talker")
        (outcome,) = await bench.run("Quitter")
        assert outcome.died is not None
        assert outcome.died.reason == "exited with code 7"
        assert not outcome.died.blames_code

    lab.work(work)


def test_output_of_every_kind_is_captured_and_written_to_the_log(lab: Lab, tmp_path: Path) -> None:
    lab.write("""
        import logging, subprocess

        class Loud(Workflow):
            vus = 1
            duration = "30s"
            iterations = 1

            @step()
            async def speak(self) -> Result:
                print("printed")
                print("in red", file=sys.stderr)
                os.write(1, b"from the descriptor\\n")
                subprocess.run(["echo", "from a child"])
                logging.getLogger("mine").warning("logged")
                sys.stdout.buffer.write(b"bytes\\n")
                print("no line end", end="")
                return Result()
    """)

    async def work(bench: Bench) -> None:
        (outcome,) = await bench.run("Loud")
        said = outcome.output
        for words in (
            "printed\n",
            "in red\n",
            "from the descriptor\n",
            "from a child\n",
            "WARNING mine: logged\n",
            "bytes\n",
            "no line end",
        ):
            assert words in said, said
        # All output comes before the end of the slot.
        kinds = [type(event) for event in outcome.events]
        assert ExecutorOutput in kinds
        assert kinds[-1] is not ExecutorOutput

    logs = tmp_path / "logs"
    lab.work(work, log_dir=logs)
    assert "from a child" in (logs / "executor-0.log").read_text()


def test_output_over_the_rate_limit_is_dropped_without_blocking(lab: Lab) -> None:
    lab.write("""
        class Flood(Workflow):
            vus = 1
            duration = "30s"
            iterations = 20

            @step()
            async def pour(self) -> Result:
                for _ in range(100):
                    print("x" * 10_000)
                os.write(1, b"y" * 1_000_000)
                return Result()
    """)
    (outcome,) = lab.run("Flood")
    assert outcome.step("pour").counts.ok == 20
    assert "bytes dropped" in outcome.output
    assert len(outcome.output) < 3_000_000  # of 40 MB


def test_a_log_that_cannot_be_written_does_not_stop_the_run(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a directory should be")
    lab.write("""
        class Loud(Workflow):
            vus = 1
            duration = "30s"
            iterations = 1

            @step()
            async def speak(self) -> Result:
                print("hello")
                return Result()
    """)

    async def work(bench: Bench) -> None:
        (outcome,) = await bench.run("Loud")
        assert outcome.step("speak").counts.ok == 1
        assert "hello" in outcome.output
        assert "output is no longer saved" in outcome.output

    lab.work(work, log_dir=tmp_path / "logs")


def test_user_code_may_close_or_replace_its_streams(lab: Lab) -> None:
    lab.write("""
        class Mute(Workflow):
            vus = 1
            duration = "30s"
            iterations = 1

            @step()
            async def mute(self) -> Result:
                sys.stdout.close()
                sys.stderr = None
                os.write(1, b"still here\\n")
                return Result()

            @teardown(per="executor")
            async def fail(self):
                raise ValueError("told nobody")
    """)
    (outcome,) = lab.run("Mute")
    assert outcome.step("mute").counts.ok == 1
    assert outcome.step("fail").counts.failed == 1
    assert "still here" in outcome.output
    assert "ValueError: told nobody" in outcome.output


def test_a_full_disk_loses_log_lines_and_nothing_else(lab: Lab, tmp_path: Path) -> None:
    lab.write("""
        class Loud(Workflow):
            vus = 1
            duration = "30s"
            iterations = 3

            @step()
            async def speak(self) -> Result:
                print("said")
                return Result()
    """)
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "executor-0.log").symlink_to("/dev/full")

    async def work(bench: Bench) -> None:
        (outcome,) = await bench.run("Loud")
        assert outcome.step("speak").counts.ok == 3
        assert "No space left on device" in outcome.output

    lab.work(work, log_dir=logs)  # closing the pool must not fail either
