"""How ranks exchange tensors among themselves. A backend is one folder; `chosen.py` names the one in use."""
