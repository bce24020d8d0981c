"""Training on written data: fine-tuning on demonstrations, and DPO on preference pairs."""
