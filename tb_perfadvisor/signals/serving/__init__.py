"""What an inference server does in its steps, and between them."""
