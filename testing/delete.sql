-- delete: what tests leave behind once every execution has ended.
TRUNCATE ledger.execution, ledger.action_minute, ledger.attempt, ledger.log, ledger.progress, ledger.answer,
    ledger.early_cancel, ledger.singleton, ledger.large_body, ledger.event, ledger.webhook, ledger.dead_letter
