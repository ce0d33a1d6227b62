"""The final model on the Hub, where the run asks for it."""

from __future__ import annotations

import os
from pathlib import Path

from bestofk.config import Config
from bestofk.rare_settings import run_options


def push_final(config: Config, run: Path) -> str | None:
    """Upload a finished run's final model; its address, or None where none was asked for.

    The token is the Hub library's: HF_TOKEN, or `hf auth login`.

    Raises:
        OSError: the upload failed; says how to repeat it. The run's folder is complete.
    """
    options = run_options(config)
    if options.push_to_hub is None:
        return None
    from huggingface_hub import HfApi

    folder, name = run / "final", options.push_to_hub
    try:
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
        api.create_repo(name, private=options.hub_private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Add the trained model")
        return f"{api.endpoint}/{name}"
    except Exception as error:  # whatever the Hub's library raises, the run itself is safe
        first = str(error).strip().partition("\n")[0]
        raise OSError(
            f"the run is complete, but {folder} could not be pushed to {name}: {first}; repeat it "
            f"with: hf upload {name} {folder}"
        ) from error
