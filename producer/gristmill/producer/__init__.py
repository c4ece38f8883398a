"""The producer's side: clients and the commands that submit requests and read results."""
