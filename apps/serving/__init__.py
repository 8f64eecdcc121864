"""Decoding over HTTP: requests as rows of one batch, OpenAI's protocol, and a page that shows them."""
