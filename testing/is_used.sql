-- is_used: whether a test has left something.
SELECT EXISTS (SELECT FROM ledger.execution) OR EXISTS (SELECT FROM ledger.inbox)
    OR EXISTS (SELECT FROM ledger.answer) OR EXISTS (SELECT FROM ledger.early_cancel)
    OR EXISTS (SELECT FROM ledger.dead_letter)
