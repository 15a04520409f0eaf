"""The endpoints of the tasks, one package each: messages, routes, handler, comparison."""
