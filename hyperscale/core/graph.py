"""The authoring API under the name `hyperscale.core.graph`, which published tests import."""

from hyperscale.graph import *  # noqa: F403 - its public names, all of them
