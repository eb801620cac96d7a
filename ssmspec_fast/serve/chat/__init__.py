"""Chats: the template of a folder, and the process that renders it."""
