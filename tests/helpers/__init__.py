"""What tests share: runs on several ranks, commands, projects of users, servers."""
