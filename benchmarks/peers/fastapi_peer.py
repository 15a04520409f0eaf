"""FastAPI around a transformers pipeline, as most tutorials have it: no batches, torch in fp32."""

import os
import sys
from typing import Any

import fastapi
import torch
import transformers
import uvicorn

torch.set_num_threads(1)
app = fastapi.FastAPI()
pipeline = transformers.pipeline("text-classification", os.environ["PEER_MODEL"], device="cpu")


@app.post("/predict")
def predict(body: dict[str, Any]) -> Any:
    """One text."""
    return pipeline(body["inputs"])[0]


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
