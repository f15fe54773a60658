"""What a process has of its own: time, threads, forks, its title, its terminal's keys."""
