"""What operators see and do: lists, history, overview, actions, audit."""
