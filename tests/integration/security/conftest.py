"""`fortress`: one secured installation for all tests of this package."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.security.fortress import Fortress, fortified


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def fortress(local_binaries: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fortress]:
    async with fortified(tmp_path_factory.mktemp("fortress")) as running:
        yield running
