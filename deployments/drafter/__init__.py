"""The drafter deployment: sessions of requests, and the socket on which verifiers ask for drafts."""
