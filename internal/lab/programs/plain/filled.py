"""A list of rows is read at first, and used then."""
import time

rows = []
for i in range(400):
    rows.append([float(j) for j in range(4000)])
    time.sleep(0.005)
total = 0
for i in range(2500):
    total += sum(rows[i % 400])
    time.sleep(0.008)
