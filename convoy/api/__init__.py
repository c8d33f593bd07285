"""What `import convoy` offers; the command line calls the same functions."""
