"""Every setting once: Kafka's name, type, default, bounds and one line of documentation.

`KafkaConfig.load(path, overrides)` reads a server.properties; `LogConfig` is what one topic's log goes by.
"""

from kbroker.common.endpoint import Endpoint
from kbroker.config.checks import check_listener_changes
from kbroker.config.kafka_config import BROKER_SETTINGS, KafkaConfig
from kbroker.config.log import TOPIC_SETTINGS, LogConfig, parse_topic
from kbroker.config.setting import ConfigError, ConfigType, Setting, Value, show_value

__all__ = [
    "BROKER_SETTINGS",
    "TOPIC_SETTINGS",
    "ConfigError",
    "ConfigType",
    "Endpoint",
    "KafkaConfig",
    "LogConfig",
    "Setting",
    "Value",
    "check_listener_changes",
    "parse_topic",
    "show_value",
]
