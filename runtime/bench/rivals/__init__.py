"""What people run today, over the same prompts: each rival is one module with one class.

A rival lives in a process of its own (`child`), so that its threads, its memory and the settings its libraries read at
import are its own: Fullread lets waiting threads sleep soon, which may slow down a library that counts on them to spin.
"""
