"""What knows both hosts: conversion, verification, datasets, the demo."""
