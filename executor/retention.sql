-- prune_audit_log: deletes rows that are older than so many seconds, and never younger ones than 30 days: the
-- account of an executor must not be able to delete what it did. With the rights of the owner of the tables.
--
-- $1 seconds, $2 most
SELECT ledger.prune_audit_log($1, $2)
