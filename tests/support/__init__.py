"""What several tests share: drawn files, servers, fakes and ways to run the command."""
