"""This package runs Python programs that a model has written, apart from the machine's files, network and processes.

sandbox   starts a sandbox and asks it to run programs, or tests of them
program   the first process inside, which forks one for each program
row_tests runs the tests of a row against the program in another process
walls     namespaces around a sandbox, and limits on each process inside
peers     lets tests call the functions of a program that runs in another process
"""
