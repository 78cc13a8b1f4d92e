"""The leader of a group's jobs: compares committed state with what workers report, and acts."""
