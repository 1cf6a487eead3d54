"""Check requests: from the check queue to a member, by poll or by courier (webhooks, plug-ins)."""
