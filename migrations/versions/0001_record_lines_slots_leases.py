"""The first revision: history, queues, slots and leases."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "action",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("runner", sa.Text(), server_default="python", nullable=False),
        sa.Column("entrypoint", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("max_concurrent", sa.Integer(), nullable=True),
        sa.Column("concurrency_key", sa.Text(), nullable=True),
        sa.Column("concurrency_key_path", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("timeout_seconds", sa.Float(), nullable=True),
        sa.Column("ttl_seconds", sa.Float(), nullable=True),
        sa.Column("retry_max_attempts", sa.Integer(), server_default="1", nullable=False),
        sa.Column("retry_delay_seconds", sa.Float(), server_default="1", nullable=False),
        sa.Column("retry_factor", sa.Float(), server_default="2", nullable=False),
        sa.Column("retry_max_delay_seconds", sa.Float(), server_default="300", nullable=False),
        sa.Column("retry_jitter", sa.Float(), server_default="0.1", nullable=False),
        sa.Column("on_worker_lost", sa.Text(), server_default="requeue", nullable=False),
        sa.Column("max_reclaims", sa.Integer(), server_default="5", nullable=False),
        sa.Column("pool", sa.Text(), server_default="default", nullable=False),
        sa.Column("when_full", sa.Text(), server_default="enqueue", nullable=False),
        sa.Column("max_queued", sa.Integer(), nullable=True),
        sa.Column("paused", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "on_worker_lost IN ('requeue', 'abandon')", name=op.f("ck_action_on_worker_lost_known")
        ),
        sa.CheckConstraint("runner IN ('python', 'command', 'http')", name=op.f("ck_action_runner_known")),
        sa.CheckConstraint("when_full IN ('enqueue', 'reject')", name=op.f("ck_action_when_full_known")),
        sa.CheckConstraint("max_concurrent >= 0", name=op.f("ck_action_limit_not_negative")),
        sa.CheckConstraint("max_queued >= 0", name=op.f("ck_action_max_queued_not_negative")),
        sa.CheckConstraint(
            "retry_max_attempts >= 1 AND max_reclaims >= 0", name=op.f("ck_action_counts_not_negative")
        ),
        sa.CheckConstraint(
            "timeout_seconds >= 0 AND ttl_seconds >= 0", name=op.f("ck_action_durations_not_negative")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_action")),
        sa.UniqueConstraint("ref", name=op.f("uq_action_ref")),
    )
    op.create_table(
        "attempt",
        sa.Column("execution_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("log", sa.Text(), nullable=True),
        sa.Column("granted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("attempt > 0", name=op.f("ck_attempt_attempt_positive")),
        sa.PrimaryKeyConstraint("execution_id", "attempt", name=op.f("pk_attempt")),
    )
    op.create_table(
        "delayed",
        sa.Column("execution_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("queue_id", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("execution_id", name=op.f("pk_delayed")),
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "2000",
            "autovacuum_vacuum_cost_delay": "0",
        },
    )
    op.create_index("ix_delayed_due_at", "delayed", ["due_at"], unique=False)
    op.create_table(
        "execution",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("action_id", sa.BigInteger(), nullable=False),
        sa.Column("queue_id", sa.BigInteger(), nullable=False),
        sa.Column(
            "status",
            postgresql.ENUM(
                "delayed",
                "queued",
                "scheduled",
                "running",
                "completed",
                "failed",
                "timeout",
                "cancelled",
                "expired",
                "abandoned",
                name="execution_status",
            ),
            nullable=False,
        ),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("reclaims", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "parameters",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column(
            "metadata",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("concurrency_key", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("delivery_key", sa.Uuid(), nullable=True),
        sa.Column("request_hash", sa.Uuid(), nullable=False),
        sa.Column("result", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("timeout_seconds", sa.Float(), nullable=True),
        sa.Column("callback_url", sa.Text(), nullable=True),
        sa.Column("traceparent", sa.Text(), nullable=True),
        sa.Column("cancel_reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("scheduled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("run_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(completed_at IS NOT NULL) = (status IN "
            "('completed', 'failed', 'timeout', 'cancelled', 'expired', 'abandoned'))",
            name=op.f("ck_execution_completed_at_iff_terminal"),
        ),
        sa.CheckConstraint(
            "jsonb_typeof(metadata) = 'object'", name=op.f("ck_execution_metadata_is_an_object")
        ),
        sa.CheckConstraint(
            "jsonb_typeof(parameters) = 'object'", name=op.f("ck_execution_parameters_are_an_object")
        ),
        sa.CheckConstraint(
            "result IS NULL OR status = 'completed'", name=op.f("ck_execution_result_only_when_completed")
        ),
        sa.CheckConstraint(
            "status <> 'running' OR worker_id IS NOT NULL", name=op.f("ck_execution_running_has_worker")
        ),
        sa.CheckConstraint(
            "status NOT IN ('scheduled', 'running') OR attempt > 0",
            name=op.f("ck_execution_granted_has_attempt"),
        ),
        sa.CheckConstraint("attempt >= 0", name=op.f("ck_execution_attempt_not_negative")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_execution")),
        postgresql_with={"fillfactor": "60"},
    )
    op.create_index("ix_execution_action_id", "execution", ["action_id", "id"], unique=False)
    op.create_index(
        "uq_execution_delivery_key",
        "execution",
        ["delivery_key"],
        unique=True,
        postgresql_where=sa.text("delivery_key IS NOT NULL"),
    )
    op.create_index(
        "uq_execution_idempotency_key",
        "execution",
        ["idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_table(
        "expiring",
        sa.Column("execution_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("queue_id", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("execution_id", name=op.f("pk_expiring")),
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "2000",
            "autovacuum_vacuum_cost_delay": "0",
        },
    )
    op.create_index("ix_expiring_expires_at", "expiring", ["expires_at"], unique=False)
    op.create_table(
        "slot",
        sa.Column("execution_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("queue_id", sa.BigInteger(), nullable=False),
        sa.Column("slot_number", sa.Integer(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("granted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("offered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("told_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(worker_id IS NULL) = (claimed_at IS NULL)", name=op.f("ck_slot_claimed_by_a_worker")
        ),
        sa.CheckConstraint("attempt >= 1", name=op.f("ck_slot_attempt_positive")),
        sa.CheckConstraint("slot_number >= 1", name=op.f("ck_slot_number_positive")),
        sa.PrimaryKeyConstraint("execution_id", name=op.f("pk_slot")),
        postgresql_with={
            "fillfactor": "50",
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "2000",
            "autovacuum_vacuum_cost_delay": "0",
        },
    )
    op.create_index("uq_slot_number", "slot", ["queue_id", "slot_number"], unique=True)
    op.create_table(
        "untold_end",
        sa.Column("execution_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("queue_id", sa.BigInteger(), nullable=False),
        sa.Column("told_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("execution_id", name=op.f("pk_untold_end")),
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "2000",
            "autovacuum_vacuum_cost_delay": "0",
        },
    )
    op.create_table(
        "waiting",
        sa.Column("queue_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("execution_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("queue_id", "execution_id", name=op.f("pk_waiting")),
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "2000",
            "autovacuum_vacuum_cost_delay": "0",
        },
    )
    op.create_table(
        "worker",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("pools", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("renewed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("draining_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stopped_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lost_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("concurrency >= 1", name=op.f("ck_worker_concurrency_positive")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker")),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_table(
        "action_queue",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("action_id", sa.BigInteger(), nullable=False),
        sa.Column("concurrency_key", sa.Text(), server_default="", nullable=False),
        sa.Column("max_concurrent", sa.Integer(), nullable=True),
        sa.Column("paused", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("depth", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("head_id", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("total_enqueued", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("total_completed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("depth >= 0", name=op.f("ck_action_queue_depth_not_negative")),
        sa.CheckConstraint("max_concurrent >= 0", name=op.f("ck_action_queue_limit_not_negative")),
        sa.CheckConstraint(
            "total_completed >= 0 AND total_completed <= total_enqueued",
            name=op.f("ck_action_queue_totals_ordered"),
        ),
        sa.ForeignKeyConstraint(["action_id"], ["action.id"], name=op.f("fk_action_queue_action_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_action_queue")),
        sa.UniqueConstraint(
            "action_id", "concurrency_key", name=op.f("uq_action_queue_action_id_concurrency_key")
        ),
        postgresql_with={"fillfactor": "50"},
    )
