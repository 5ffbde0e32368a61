"""Packaging entry point: everything is declared in setup.cfg."""

from setuptools import setup

setup()
