"""The catalog of advice: what to change, as data, one entry per change."""

from tb_perfadvisor.advice.catalog import Change, Remedy, Value, advise, change, change_ids

__all__ = ["Change", "Remedy", "Value", "advise", "change", "change_ids"]
