"""Real speculative decoding of prompts: acceptance length, speed-up and losslessness, after and during training."""
