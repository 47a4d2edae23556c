"""Schedules as pure rules: which nominal times there are, and what to do about those that are past."""

from tasksched.model.schedule.fixed import Delay, Every
from tasksched.model.schedule.parse import parse_rule, require_first
from tasksched.model.schedule.rule import Rule
from tasksched.model.schedule.rules import Cron, RRule

__all__ = ["Cron", "Delay", "Every", "RRule", "Rule", "parse_rule", "require_first"]
