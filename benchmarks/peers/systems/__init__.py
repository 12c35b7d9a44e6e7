"""One module for each system: its jobs as it wants them written, and how it is asked for them.

Each is imported by that system's own worker processes and by `submitter`, and by nothing else: only there its
package must be installed. All speak of the same actions (`loads`) and run the same job (`job`).
"""
