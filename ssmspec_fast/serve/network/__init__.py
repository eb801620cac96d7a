"""Between the socket and the app: where the server listens, its connections, what it logs of them."""
